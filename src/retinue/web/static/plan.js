// The plans of a task as graphs: each step right of the steps that it depends on.
import { html, line, subagentPath, taskPath } from './lib.js';
import { Icon, tone } from './parts.js';

const WIDE = 168;
const HIGH = 44;
const GAP_X = 48;
const GAP_Y = 12;
const MOST = 300; // steps; beyond that, the table and the timeline say more

// The column of each step: one right of the last step that it waits for.
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

function arrange(steps) {
  const column = columns(steps);
  const taken = new Map();
  const places = new Map();
  for (const step of steps) {
    const x = column.get(step.id);
    const y = taken.get(x) || 0;
    taken.set(x, y + 1);
    places.set(step.id, [x * (WIDE + GAP_X), y * (HIGH + GAP_Y)]);
  }
  return { places, width: (Math.max(...column.values()) + 1) * (WIDE + GAP_X) - GAP_X, height: Math.max(...taken.values()) * (HIGH + GAP_Y) - GAP_Y };
}

function Step({ task, step, place, closed }) {
  const word = step.status ? String(step.status).replace(/_/g, ' ') : closed || step.not_started ? 'not started' : 'not begun';
  const said = html`<${Icon} status=${step.status || 'pending'} /><span><b>${line(step.id)}</b><small>${word}</small></span>`;
  const style = { left: `${place[0]}px`, top: `${place[1]}px`, width: `${WIDE}px`, height: `${HIGH}px` };
  const title = [step.title, step.not_started].filter(Boolean).map(line).join(': ') || line(step.id);
  return step.status
    ? html`<a class=${`step ${tone(step.status)}`} href=${subagentPath(task, step.id)} style=${style} title=${title}>${said}</a>`
    : html`<span class="step" style=${style} title=${title}>${said}</span>`;
}

function Graph({ task, plan, closed }) {
  const { places, width, height } = arrange(plan.steps);
  const edges = plan.steps.flatMap(step => step.depends_on.filter(name => places.has(name)).map(name => [name, step.id]));
  const path = ([one, other]) => {
    const [x1, y1] = places.get(one);
    const [x2, y2] = places.get(other);
    return `M${x1 + WIDE} ${y1 + HIGH / 2}C${x1 + WIDE + GAP_X / 2} ${y1 + HIGH / 2} ${x2 - GAP_X / 2} ${y2 + HIGH / 2} ${x2} ${y2 + HIGH / 2}`;
  };
  return html`
    <div class="graph" tabindex="0" role="group" aria-label=${`Steps of ${line(plan.goal)}`}>
      <div class="graph-all" style=${{ width: `${width}px`, height: `${height}px` }}>
        <svg width=${width} height=${height} aria-hidden="true">${edges.map(edge => html`<path key=${edge.join()} d=${path(edge)} />`)}</svg>
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
