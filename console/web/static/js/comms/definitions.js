// What the words of the communication panel mean.

/** How the overlap was found. */
export const OVERLAP = {
  timeline: "|communication ∩ compute| / |communication| on a rank's time line",
  pure: "max(0, 1 − (overall − compute) / pure communication), as the OSU benchmarks define it",
  measured: "(compute + communication − step) / compute",
  wire: "bursts of the network interface are taken for communication, all of it exposed: an estimate",
};

/** What the durations are. */
export const TIMING = {
  device: "the GPU's timer",
  host: "the host's clock, from the call to its end",
  issue: "the time to issue the call, not the transfer",
};

export const SOURCES = { nccl: "NCCL's profiler plug-in", torch: "PyTorch's process group", tf: "TensorFlow's profiler, in windows", wire: "bytes of the network interface" };

/** What the state of a recorder means. */
export const RECORDERS = {
  recording: "good",
  off: "quiet",
  unknown: "quiet",
  absent: "warn",
  refused: "warn",
  damaged: "bad",
};
