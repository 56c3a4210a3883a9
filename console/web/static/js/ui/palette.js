// Colours and shapes of jobs. The colours are those of Okabe and Ito (2008), which people with any
// of the common colour deficiencies can distinguish; each job also has a shape and its name.

const COLOURS = {
  orange: "#e69f00",
  sky: "#56b4e9",
  green: "#009e73",
  yellow: "#f0e442",
  blue: "#0072b2",
  red: "#d55e00",
  purple: "#cc79a7",
};
const ORDER = ["orange", "sky", "green", "purple", "red", "blue", "yellow"];
const WORDS = { pink: "purple", violet: "purple", magenta: "purple", cyan: "sky", vermillion: "red" };
const SHAPES = ["round-rectangle", "cut-rectangle", "barrel", "tag", "rectangle", "bottom-round-rectangle", "rhomboid"];
const DARK_TEXT = "#10161d";
const LIGHT_TEXT = "#ffffff";
const DARK_FILLS = new Set([COLOURS.blue]);

export const BAD = COLOURS.red;

/** Assigns looks to jobs; a job keeps its look while the page is open. */
export class Looks {
  #looks = new Map();

  /** Return {colour, shape, text} of a job; a job named after a colour gets that colour. */
  of(job) {
    if (!job) return null;
    let look = this.#looks.get(job);
    if (!look) {
      const n = this.#looks.size;
      const colour = COLOURS[this.#named(job) ?? this.#next()];
      const text = DARK_FILLS.has(colour) ? LIGHT_TEXT : DARK_TEXT;
      look = { colour, shape: SHAPES[n % SHAPES.length], text };
      this.#looks.set(job, look);
    }
    return look;
  }

  #named(job) {
    const word = job.split("-")[0];
    return word in COLOURS ? word : WORDS[word];
  }

  #next() {
    const used = new Map(ORDER.map((name) => [COLOURS[name], 0]));
    for (const look of this.#looks.values()) used.set(look.colour, used.get(look.colour) + 1);
    return ORDER.reduce((best, name) => (used.get(COLOURS[name]) < used.get(COLOURS[best]) ? name : best));
  }
}

/** Colour of a link by load (0 to 1): quiet, busy, full. */
export function loadColour(share, theme) {
  if (share === null || share === undefined) return theme.line;
  if (share >= 0.85) return COLOURS.red;
  if (share >= 0.5) return COLOURS.orange;
  return share >= 0.02 ? theme.flow : theme.line;
}

/** The theme's current CSS colours, for drawing on a canvas. */
export function theme() {
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(`--${name}`).trim();
  return {
    text: of("text"),
    muted: of("muted"),
    surface: of("surface"),
    sunken: of("sunken"),
    border: of("border"),
    line: of("line"),
    flow: of("flow"),
    accent: of("accent"),
    font: of("font"),
    idle: of("idle"),
  };
}
