"""An application whose worker is told to stop in the moment in which it says that it starts."""

from __future__ import annotations

import logging
import os
import signal

from duetime import Duetime
from duetime.telemetry.logs import event_of

app = Duetime()


class StopAtStart(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if event_of(record) == "starting":
            os.kill(os.getpid(), signal.SIGTERM)


logging.getLogger("duetime.cli").addHandler(StopAtStart())
