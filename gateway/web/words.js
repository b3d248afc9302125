// Figures and states in words.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const ago = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const TERMINAL = new Set(["completed", "failed", "expired", "cancelled"]);

export const STOPPED = new Set(["expired", "cancelling", "cancelled"]);

export const STATUS = {
  validating: "Checking",
  in_progress: "Running",
  finalizing: "Finishing",
  completed: "Completed",
  failed: "Failed",
  expired: "Expired",
  cancelling: "Cancelling",
  cancelled: "Cancelled",
};

export const WAITING = {
  queued: "Waiting for its turn",
  model_not_available: "Waiting: no engine serves its model",
  lease_unavailable: "Waiting: somebody else has its model",
  capacity: "Waiting: engines are full",
};

export const count = (number) => whole.format(number);
export const compact = (number) => (number < 100_000 ? whole.format(number) : short.format(number));
export const rows = (number) => `${count(number)} ${number === 1 ? "row" : "rows"}`;

export function rate(number) {
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : whole.format(Math.round(number));
}

export function span(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 3_600) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3_600);
  const minutes = Math.round((seconds % 3_600) / 60);
  return hours < 24 ? `${hours} h ${minutes} min` : `${Math.round(hours / 24)} days`;
}

export function since(unix) {
  const seconds = Math.round(unix - Date.now() / 1000);
  if (seconds > -5) return "just now";
  if (seconds > -90) return ago.format(seconds, "second");
  if (seconds > -5_400) return ago.format(Math.round(seconds / 60), "minute");
  if (seconds > -129_600) return ago.format(Math.round(seconds / 3_600), "hour");
  return ago.format(Math.round(seconds / 86_400), "day");
}

export const at = (unix) => moment.format(new Date(unix * 1000));
export const iso = (unix) => new Date(unix * 1000).toISOString();

export function bytes(size) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let step = 0;
  while (size >= 1024 && step < units.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${step && size < 10 ? size.toFixed(1) : whole.format(Math.round(size))} ${units[step]}`;
}
