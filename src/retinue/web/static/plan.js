// The plans of a task as graphs: each step is to the right of the steps that it depends on.
import { html, line, subagentPath, taskPath, useMemo } from './lib.js';
import { Icon, tone } from './components.js';

const WIDE = 168;
const HIGH = 44;
const LINE = 14; // height that a line takes in a column that it crosses
const GAP_X = 48;
const GAP_Y = 12;
const MOST = 300; // steps; a larger graph would not be readable

// The column of each step: one to the right of the last step that it depends on.
function columns(steps) {
  const known = new Map(steps.map(step => [step.id, step]));
  const found = new Map();
  // Dependencies of a recorded plan have no cycle.
  const at = id => {
    if (!found.has(id)) found.set(id, Math.max(-1, ...known.get(id).depends_on.filter(name => known.has(name)).map(at)) + 1);
    return found.get(id);
  };
  steps.forEach(step => at(step.id));
  return found;
}

// The position of each step, and the points of each dependency's line. A line that crosses a column has a position of
// its own there, so that it does not run behind a step.
function arrange(steps) {
  const column = columns(steps);
  const below = new Map(); // steps and crossing lines of each column, from the top
  const put = (x, what) => below.set(x, [...(below.get(x) || []), what]);
  const found = new Map(steps.map(step => [step.id, { step: step.id, from: [] }]));
  const passing = new Map(steps.map(step => [step.id, []])); // crossing lines of each step, one for each column after it
  const edges = [];
  for (const step of steps) put(column.get(step.id), found.get(step.id));
  for (const step of steps) {
    for (const name of step.depends_on.filter(each => column.has(each))) {
      const through = passing.get(name);
      for (let x = column.get(name) + 1 + through.length; x < column.get(step.id); x += 1) {
        through.push({ from: [through[through.length - 1] || found.get(name)] });
        put(x, through[through.length - 1]);
      }
      const passed = through.slice(0, column.get(step.id) - column.get(name) - 1);
      found.get(step.id).from.push(passed[passed.length - 1] || found.get(name));
      edges.push([found.get(name), ...passed, found.get(step.id)]);
    }
  }
  // From left to right: place each about as high as what it follows.
  const middle = each => (each.from.length ? each.from.reduce((sum, one) => sum + one.y, 0) / each.from.length : Infinity);
  for (const x of [...below.keys()].sort((one, other) => one - other)) {
    const ordered = x ? below.get(x).map((each, index) => [middle(each), index, each]).sort((one, other) => one[0] - other[0] || one[1] - other[1]).map(([, , each]) => each) : below.get(x);
    let y = 0;
    for (const each of ordered) {
      each.x = x * (WIDE + GAP_X);
      each.y = y;
      y += (each.step ? HIGH : LINE) + GAP_Y;
    }
    below.set(x, ordered);
  }
  const all = [...below.values()].flat();
  return { places: found, edges, width: (Math.max(...below.keys()) + 1) * (WIDE + GAP_X) - GAP_X, height: Math.max(...all.map(each => each.y + (each.step ? HIGH : LINE))) };
}

// A curve between columns, straight across a column.
function path(points) {
  const high = each => each.y + (each.step ? HIGH : LINE) / 2;
  let drawn = `M${points[0].x + WIDE} ${high(points[0])}`;
  points.slice(1).forEach((each, index) => {
    const before = points[index];
    const half = before.x + WIDE + GAP_X / 2;
    drawn += `C${half} ${high(before)} ${half} ${high(each)} ${each.x} ${high(each)}`;
    if (!each.step) drawn += `H${each.x + WIDE}`;
  });
  return drawn;
}

function Step({ task, step, place, closed }) {
  const word = step.status ? String(step.status).replace(/_/g, ' ') : closed || step.not_started ? 'not started' : 'not begun';
  const said = html`<${Icon} status=${step.status || 'pending'} /><span><b>${line(step.id)}</b><small>${word}</small></span>`;
  const style = { left: `${place.x}px`, top: `${place.y}px`, width: `${WIDE}px`, height: `${HIGH}px` };
  const title = [step.title, step.not_started].filter(Boolean).map(line).join(': ') || line(step.id);
  return step.status
    ? html`<a class=${`step ${tone(step.status)}`} href=${subagentPath(task, step.id)} style=${style} title=${title}>${said}</a>`
    : html`<span class="step" style=${style} title=${title}>${said}</span>`;
}

function Graph({ task, plan, closed }) {
  const { places, edges, width, height } = useMemo(() => arrange(plan.steps), [plan]);
  return html`
    <div class="graph" tabindex="0" role="group" aria-label=${`Steps of ${line(plan.goal)}`}>
      <div class="graph-all" style=${{ width: `${width}px`, height: `${height}px` }}>
        <svg width=${width} height=${height} aria-hidden="true">${edges.map((edge, index) => html`<path key=${index} d=${path(edge)} />`)}</svg>
        ${plan.steps.map(step => html`<${Step} key=${step.id} task=${task} step=${step} place=${places.get(step.id)} closed=${closed} />`)}
      </div>
    </div>`;
}

export function PlanGraphs({ task, plans, closed }) {
  const drawn = plans.filter(plan => plan.steps.length && plan.steps.length <= MOST);
  return drawn.map((plan, index) => html`
    <section key=${index} class="card plan" aria-labelledby=${`plan-${index}`}>
      <div class="card-head"><h2 id=${`plan-${index}`}>Plan <span class="badge">${plan.steps.length}</span></h2>
        ${plan.parent ? html`<span class="muted">of ${line(plan.parent)}</span>` : null}
        ${plan.retry_of ? html`<span class="muted">retry of <a href=${taskPath(plan.retry_of)}>${line(plan.retry_of)}</a></span>` : null}</div>
      <${Graph} task=${task} plan=${plan} closed=${closed} />
    </section>`);
}
