// What a system for Node.js is asked to do: the same lines of JSON as in side.py.
import readline from "node:readline";

const REPORT_MS = 50;
const ARGS_BYTES = 150;
const lines = [];
const waiting = [];

const input = readline.createInterface({ input: process.stdin });
input.on("line", (line) => {
  const message = JSON.parse(line);
  const next = waiting.shift();
  if (next) next(message);
  else lines.push(message);
});
input.on("close", () => process.exit(0));

const hear = () =>
  lines.length ? Promise.resolve(lines.shift()) : new Promise((next) => waiting.push(next));
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
// The clock that Python calls monotonic.
const now = () => Number(process.hrtime.bigint()) / 1e9;

export function jobOf(number) {
  const empty = `{"number":${number},"note":""}`.length;
  return { number, note: "n".repeat(ARGS_BYTES - empty) };
}

/** side: prepare(url), open(url), bulk(jobs), single(job), timers([{job, due}]), left(), close(),
 *  work(url, ran) which resolves, when it works, to a function that stops it. */
export async function run(side) {
  const parameters = await hear();
  const roles = { prepare, produce, work };
  await roles[process.argv[2]](side, parameters);
  process.exit(0);
}

async function prepare(side, { url }) {
  await side.prepare(url);
  say("prepared");
}

async function produce(side, { url }) {
  await side.open(url);
  say("ready");
  for (let asked = await hear(); asked !== "stop"; asked = await hear()) {
    say(await answer(side, asked));
  }
  await side.close();
  say("stopped");
}

async function answer(side, asked) {
  if (asked.do === "left") return { left: await side.left() };
  if (asked.do === "timers") {
    await side.timers(asked.timers.map(([number, due]) => ({ job: { number, note: "" }, due })));
    return {};
  }
  if (asked.do === "single") {
    const began = now();
    const until = began + asked.seconds;
    let count = 0;
    while (count < asked.most && (!count || now() < until)) {
      await side.single(jobOf(asked.first + count));
      count += 1;
    }
    return { count, began, ended: now() };
  }
  const jobs = Array.from({ length: asked.count }, (_, place) => jobOf(asked.first + place));
  const began = now();
  await side.bulk(jobs);
  return { seconds: now() - began };
}

async function work(side, { url, tell }) {
  const executions = [];
  const ran = (number) => {
    executions.push([number, now()]);
    if (tell) say({ number });
  };
  say("ready");
  await hear();
  const stop = await side.work(url, ran);
  say("started");
  let reported = 0;
  const reporting = setInterval(() => {
    if (!tell && executions.length > reported) {
      reported = executions.length;
      say({ count: reported });
    }
  }, REPORT_MS);
  await hear();
  clearInterval(reporting);
  await stop();
  await new Promise((written) =>
    process.stdout.write(JSON.stringify({ executions }) + "\n", written),
  );
}
