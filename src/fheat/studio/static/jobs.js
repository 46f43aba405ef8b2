// Following a job until it ends: by the event stream of the service, and by asking where the stream is broken.

import { ask } from "./api.js";

const ENDED = new Set(["done", "failed", "cancelled"]);
const ASK_EVERY = 2000;

let stream = null;

/** Return the one event stream of this page. */
function events() {
  stream ??= new EventSource("/api/events");
  return stream;
}

/**
 * Call `onChange` with each new state of a job, and return the last one, with its result.
 *
 * The stream tells that something changed; the job itself is asked for where the stream (re)opens, and every two
 * seconds as long as it does not work, so that no end is missed.
 */
export function follow(number, onChange) {
  return new Promise((resolve, reject) => {
    const source = events();
    const close = () => {
      clearInterval(timer);
      source.removeEventListener("job", changed);
      source.removeEventListener("open", askNow);
    };
    let ended = false;
    const finish = (action) => {
      if (ended) return;
      ended = true;
      close();
      action();
    };
    const take = (job) => {
      if (ended) return;
      onChange(job);
      if (ENDED.has(job.state)) finish(() => resolve(job));
    };
    const askNow = () => ask(`/api/jobs/${number}`).then(take, (error) => error.status && finish(() => reject(error)));
    const changed = (event) => {
      const job = JSON.parse(event.data);
      if (job.job !== number) return;
      if (ENDED.has(job.state)) askNow();
      else take(job);
    };
    const timer = setInterval(() => source.readyState !== EventSource.OPEN && askNow(), ASK_EVERY);
    source.addEventListener("job", changed);
    source.addEventListener("open", askNow);
    askNow();
  });
}

/** Say how far a job is, in words. */
export function describe(job) {
  if (job.state === "queued") {
    const ahead = (job.position ?? 1) - 1;
    return ahead > 0 ? `Waiting: ${ahead} ${ahead === 1 ? "job" : "jobs"} ahead` : "Waiting for a free worker";
  }
  if (job.state !== "running") return { done: "Done", failed: "Failed", cancelled: "Cancelled" }[job.state];
  const parts = [job.of ? `Window ${job.done} of ${job.of}` : "Preparing the model and the scan"];
  if (job.seconds_left !== null && job.seconds_left !== undefined) parts.push(`about ${duration(job.seconds_left)} left`);
  return parts.join(", ");
}

/** Write a duration as people say it. */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}
