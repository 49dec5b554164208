"""The testing kit: a world of its own for each test, with a clock that the test moves.

`async with app.testing(now="2026-03-08T00:00Z") as world: …` See the guide, "Testing".
"""

from duetime.testing.opening import Opening, open_world
from duetime.testing.solo import Ran
from duetime.testing.world import World

__all__ = ["Opening", "Ran", "World", "open_world"]
