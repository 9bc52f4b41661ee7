// Events of a task as a list of any length that keeps only the recently used pages.
import { get, taskPath } from './lib.js';

const PAGE = 200;
const KEPT = 40;

const condensed = event => ({
  seq: event.seq,
  ts: event.ts,
  type: event.type,
  agentInstance: event.agentInstance,
  summary: event.summary ?? event.payload.summary,
  outcome: event.outcome ?? event.payload?.outcome,
});

// All events, newest first: event number n is at index count - n.
export class Feed {
  constructor(task, count, changed) {
    this.path = `/api${taskPath(task)}/page`;
    this.count = count;
    this.changed = changed;
    this.pages = new Map();
  }

  seq(index) {
    return this.count - index;
  }

  place(seq) {
    return this.count - seq;
  }

  at(index) {
    const seq = this.seq(index);
    const number = Math.floor((seq - 1) / PAGE);
    const page = this.page(number);
    const found = page.rows[(seq - 1) % PAGE];
    if (!found && !page.loading) this.load(number, page);
    return found;
  }

  add(event) {
    if (event.seq <= this.count) return;
    this.count = event.seq;
    this.page(Math.floor((event.seq - 1) / PAGE)).rows[(event.seq - 1) % PAGE] = condensed(event);
    this.changed();
  }

  page(number) {
    let page = this.pages.get(number);
    if (page) this.pages.delete(number);
    else page = { rows: [], loading: false };
    this.pages.set(number, page); // moved to the end: the least recently used page is dropped first
    if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
    return page;
  }

  async load(number, page) {
    page.loading = true;
    try {
      const { events } = await get(`${this.path}?after=${number * PAGE}&limit=${PAGE}&quiet=1`);
      for (const event of events) page.rows[(event.seq - 1) % PAGE] = event;
      page.loading = false;
      this.changed();
    } catch {
      setTimeout(() => { page.loading = false; this.changed(); }, 1000);
    }
  }

  more() {}
}

// Events that match a filter, newest first; older ones are fetched on scrolling.
export class Search {
  constructor(task, wanted, changed, lost) {
    this.path = `/api${taskPath(task)}/search`;
    this.wanted = wanted;
    this.changed = changed;
    this.lost = lost; // called if no steward answers
    this.failed = false; // older events could not be fetched
    this.found = [];
    this.live = [];
    this.before = null; // null: not started; 0: everything was searched
    this.busy = false;
    this.more(0);
  }

  get count() {
    return this.live.length + this.found.length;
  }

  get over() {
    return this.before === 0;
  }

  at(index) {
    const { live } = this;
    return index < live.length ? live[live.length - 1 - index] : this.found[index - live.length];
  }

  seq(index) {
    return this.at(index)?.seq ?? `n${index}`;
  }

  place(seq) {
    const found = this.found.findIndex(event => event.seq === seq);
    return found >= 0 ? found + this.live.length : this.live.length - 1 - this.live.findIndex(event => event.seq === seq);
  }

  add(event) {
    const newest = this.at(0);
    if (!matches(event, this.wanted) || (newest && newest.seq >= event.seq)) return;
    this.live.push(condensed(event));
    this.changed();
  }

  // Retry a search that failed.
  again() {
    if (!this.failed) return;
    this.failed = false;
    this.more(this.count);
  }

  async more(last) {
    if (this.busy || this.failed || this.over || last < this.count - 20 || this.count > 20000) return;
    this.busy = true;
    const query = new URLSearchParams({ quiet: 1, limit: PAGE, subagent: this.wanted.subagent, text: this.wanted.text });
    if (this.before !== null) query.set('before', this.before);
    for (const kind of this.wanted.kinds) query.append('kind', kind);
    let enough = false;
    try {
      const { events, before } = await get(`${this.path}?${query}`);
      const oldest = this.live.length ? this.live[0].seq : Infinity;
      this.found.push(...events.filter(event => event.seq < oldest));
      this.before = before;
      enough = events.length > 0;
    } catch (error) {
      this.failed = true;
      if (error.code === 'no_steward') this.lost();
    }
    this.busy = false;
    this.changed();
    if (!enough) this.more(this.count); // no match on this page: search further back
  }
}

function matches(event, { kinds, subagent, text }) {
  const summary = String(event.payload?.summary ?? '').toLowerCase();
  const wanted = text.toLowerCase();
  return (!subagent || String(event.agentInstance).toLowerCase() === subagent.toLowerCase())
    && (!kinds.length || kinds.some(kind => glob(kind).test(event.type)))
    && (!text || summary.includes(wanted) || event.type.includes(wanted));
}

const glob = pattern => new RegExp(`^${pattern.replace(/[.+^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*')}$`);
