// Graphile Worker: add_jobs, a local queue of 500, completed jobs written in batches.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { run as runSide } from "./side.mjs";

const BULK = 10_000;
const logger = new Logger(() => () => {});
const preset = {
  worker: {
    concurrentJobs: 24,
    maxPoolSize: 12,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};
let pool;
let utils;

runSide({
  async prepare(url) {
    await runMigrations({ connectionString: url, logger });
  },
  async open(url) {
    pool = new pg.Pool({ connectionString: url, max: 2 });
    pool.on("error", () => {});
    utils = await makeWorkerUtils({ pgPool: pool, logger });
  },
  async bulk(jobs) {
    for (let first = 0; first < jobs.length; first += BULK) {
      const part = jobs.slice(first, first + BULK);
      await utils.addJobs(part.map((payload) => ({ identifier: "noop", payload })));
    }
  },
  async single(job) {
    await utils.addJob("noop", job);
  },
  async timers(timers) {
    await utils.addJobs(
      timers.map(({ job, due }) => ({
        identifier: "noop",
        payload: job,
        runAt: new Date(due * 1000),
      })),
    );
  },
  async left() {
    const { rows } = await pool.query("select count(*)::int as left from graphile_worker.jobs");
    return rows[0].left;
  },
  async close() {
    await utils.release();
  },
  async work(url, ran) {
    const runner = await run({
      connectionString: url,
      preset,
      logger,
      noHandleSignals: true,
      parsedCronItems: [],
      taskList: { noop: async ({ number }) => ran(number) },
    });
    return () => runner.stop();
  },
});
