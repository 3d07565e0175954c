
// Reading the values of a chart of curves.
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 5 });

function nearest(places, x) {
  let low = 0, high = places.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle] < x) low = middle; else high = middle;
  }
  return x - places[low] < places[high] - x ? low : high;
}

function shown(value, chart) {
  return chart.share ? `${number.format(100 * value)}%` : Math.abs(value) < 1e-3 && value ? value.toExponential(3) : number.format(value);
}

function tell(svg, chart, x) {
  const language = document.documentElement.lang;
  const found = chart.lines.map((line) => ({ line, at: nearest(line.x, x) }));
  const step = found.map(({ line, at }) => line.x[at]).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
  const across = chart.left + ((step - chart.from) / (chart.to - chart.from)) * (chart.right - chart.left);
  svg.querySelector(".guide").setAttribute("d", `M${across} ${chart.top}V${chart.bottom}`);
  const values = found.map(({ line, at }) => {
    const name = chart.lines.length > 1 ? `${line[language]} ` : "";
    return `${name}${shown(line.y[at], chart)}${line.m ? ` (${language === "zh" ? "均值" : "mean"} ${shown(line.m[at], chart)})` : ""}`;
  });
  const where = language === "zh" ? `第 ${number.format(step)} 步` : `step ${number.format(step)}`;
  svg.closest("figure").querySelector("output").textContent = [where, ...values].join(" · ");
  svg.at = step;
}

for (const svg of document.querySelectorAll("svg.chart")) {
  const chart = JSON.parse(svg.closest("figure").dataset.chart);
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    tell(svg, chart, chart.from + ((x - chart.left) / (chart.right - chart.left)) * (chart.to - chart.from));
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    tell(svg, chart, (svg.at ?? chart.from) + (direction * (chart.to - chart.from)) / 100);
  });
}
