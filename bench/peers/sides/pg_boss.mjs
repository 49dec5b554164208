// pg-boss: insert of many, batches of 500, LISTEN/NOTIFY, two workers in each process.
import { PgBoss } from "pg-boss";
import pg from "pg";
import { run } from "./side.mjs";

const BULK = 10_000;
const QUEUE = "noop";
let boss;
let pool;

const connect = async (url) => {
  const opened = new PgBoss({ connectionString: url, useListenNotify: true });
  opened.on("error", (error) => console.error(error));
  await opened.start();
  return opened;
};

run({
  async prepare(url) {
    const opened = await connect(url);
    await opened.createQueue(QUEUE, { notify: true });
    await opened.stop({ graceful: false });
  },
  async open(url) {
    boss = await connect(url);
    pool = new pg.Pool({ connectionString: url, max: 1 });
  },
  async bulk(jobs) {
    for (let first = 0; first < jobs.length; first += BULK) {
      await boss.insert(QUEUE, jobs.slice(first, first + BULK).map((data) => ({ data })));
    }
  },
  async single(job) {
    await boss.send(QUEUE, job);
  },
  async timers(timers) {
    await boss.insert(
      QUEUE,
      timers.map(({ job, due }) => ({ data: job, startAfter: new Date(due * 1000) })),
    );
  },
  async left() {
    const { rows } = await pool.query(
      "select count(*)::int as left from pgboss.job where state < 'completed'",
    );
    return rows[0].left;
  },
  async close() {
    await pool.end();
    await boss.stop({ graceful: false });
  },
  async work(url, ran) {
    const opened = await connect(url);
    const options = {
      batchSize: 500,
      localConcurrency: 2,
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
      notifyPollingIntervalSeconds: 0.5,
    };
    await opened.work(QUEUE, options, async (jobs) => {
      for (const { data } of jobs) ran(data.number);
    });
    return () => opened.stop({ graceful: true, timeout: 5000 });
  },
});
