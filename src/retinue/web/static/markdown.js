// Markdown as elements, never as HTML text, because a subagent wrote it.
import { Fragment, html, plain, useState } from './lib.js';

// Counted, not endless: from a mark without its end, each is tried up to its number of characters.
const INLINE = /(`+)([^`]|[^`].{0,1000}?[^`])\1(?!`)|\*\*(.{1,1000}?)\*\*|__(.{1,1000}?)__|\*([^\s*][^*]{0,1000})\*|\[([^\]]{1,500})\]\((https?:\/\/[^\s)]{1,2000})\)/;
const DEEPEST = 16; // marks, quotes and lists within each other; what is deeper is shown as it is
const KEYWORDS = /\b(?:and|as|async|await|break|case|catch|class|const|continue|def|del|do|elif|else|enum|except|export|extends|false|False|finally|fn|for|from|func|function|if|impl|import|in|interface|is|lambda|let|match|mut|new|nil|None|not|null|or|package|pass|pub|raise|return|self|static|struct|super|switch|this|throw|true|True|try|type|use|var|void|while|with|yield)\b/;
const CODE = new RegExp(`("(?:[^"\\\\\\n]|\\\\.){0,1000}"|'(?:[^'\\\\\\n]|\\\\.){0,1000}')|((?:#|//|--)\\s.*$)|(\\b\\d[\\d._]*\\b)|(${KEYWORDS.source})`, 'gm');

function inline(text, depth = 0) {
  const parts = [];
  let rest = text;
  for (let found = depth < DEEPEST && INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    const [all, , code, strong, alsoStrong, emphasis, label, address] = found;
    const within = words => inline(words, depth + 1);
    const inner = code !== undefined ? html`<code>${code}</code>`
      : address !== undefined ? html`<a href=${address} rel="noopener noreferrer nofollow" target="_blank" title=${address}>${within(label)}</a>`
        : emphasis !== undefined ? html`<em>${within(emphasis)}</em>` : html`<strong>${within(strong ?? alsoStrong)}</strong>`;
    parts.push(rest.slice(0, found.index), inner);
    rest = rest.slice(found.index + all.length);
  }
  return [...parts, rest];
}

// Strings, comments, numbers and common keywords; the same for all languages.
export function highlight(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(CODE)) {
    const kind = found[1] ? 'string' : found[2] ? 'comment' : found[3] ? 'number' : 'keyword';
    parts.push(text.slice(at, found.index), html`<span class=${`code-${kind}`}>${found[0]}</span>`);
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

const ITEM = /^(\s*)(?:[-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const cells = row => row.trim().replace(/^\||\|$/g, '').split('|').map(cell => cell.trim());
const alignOf = rule => (/^:.*:$/.test(rule) ? 'align-center' : rule.endsWith(':') ? 'align-right' : undefined);

function list(rows, ordered, depth) {
  const items = [];
  for (const row of rows) {
    const found = ITEM.exec(row);
    if (found && (!items.length || found[1].length <= items[0].indent)) items.push({ indent: found[1].length, text: found[2], below: [] });
    else items[items.length - 1].below.push(found ? row : row.trim());
  }
  const shown = items.map((item, index) => html`<li key=${index}>${inline(item.text)}${item.below.length ? blocks(item.below, depth + 1) : null}</li>`);
  return ordered ? html`<ol>${shown}</ol>` : html`<ul>${shown}</ul>`;
}

function blocks(rows, depth = 0) {
  if (depth > DEEPEST) return [html`<p>${rows.join('\n')}</p>`];
  const made = [];
  let at = 0;
  const take = wanted => {
    const first = at;
    while (at < rows.length && wanted(rows[at], at - first)) at += 1;
    return rows.slice(first, at);
  };
  while (at < rows.length) {
    const row = rows[at];
    const fence = /^\s*(```+|~~~+)/.exec(row);
    const head = /^(#{1,6})\s+(.*?)\s*#*\s*$/.exec(row);
    if (!row.trim()) {
      at += 1;
    } else if (fence) {
      at += 1;
      const code = take(each => !each.trim().startsWith(fence[1]));
      at += 1;
      made.push(html`<pre class="code" tabindex="0" aria-label="Code">${highlight(code.join('\n'))}</pre>`);
    } else if (head) {
      at += 1;
      // Headings of an answer are one level below those of the page.
      made.push(html`<p class=${`heading level-${head[1].length}`} role="heading" aria-level=${Math.min(6, head[1].length + 3)}>${inline(head[2])}</p>`);
    } else if (/^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/.test(row)) {
      at += 1;
      made.push(html`<hr />`);
    } else if (/^\s*>/.test(row)) {
      made.push(html`<blockquote>${blocks(take(each => /^\s*>/.test(each)).map(each => each.replace(/^\s*> ?/, '')), depth + 1)}</blockquote>`);
    } else if (ITEM.test(row)) {
      made.push(list(take((each, place) => !place || ITEM.test(each) || /^\s+\S/.test(each)), /^\s*\d/.test(row), depth));
    } else if (row.includes('|') && TABLE_RULE.test(rows[at + 1] || '')) {
      const [names, rule, ...lines] = take((each, place) => place === 1 || each.includes('|'));
      const aligned = cells(rule).map(alignOf);
      made.push(html`<div class="table-frame" tabindex="0" role="group" aria-label="Table"><table><thead><tr>${cells(names).map((cell, index) => html`<th key=${index} class=${aligned[index]}>${inline(cell)}</th>`)}</tr></thead>
        <tbody>${lines.map((each, index) => html`<tr key=${index}>${cells(each).map((cell, place) => html`<td key=${place} class=${aligned[place]}>${inline(cell)}</td>`)}</tr>`)}</tbody></table></div>`);
    } else {
      const words = take((each, place) => !place || (each.trim() && !/^\s*(?:```|~~~|#{1,6}\s|>)/.test(each) && !ITEM.test(each)));
      made.push(html`<p>${words.map((each, index) => html`<${Fragment} key=${index}>${index ? '\n' : ''}${inline(each.trim())}<//>`)}</p>`);
    }
  }
  return made;
}

const LONGEST = 100000; // longer texts are shown unformatted

// Formatted text of a subagent; `text` is already escaped.
export const Formatted = ({ text, label }) => (text.length > LONGEST
  ? html`<pre class="text" tabindex="0" aria-label=${label}>${text}</pre>`
  : html`<div class="markdown text" role=${label ? 'group' : undefined} aria-label=${label}>${blocks(text.split('\n'))}</div>`);

// A formatted answer, with a switch to the raw text.
export function Answer({ text, label = 'Answer' }) {
  const [raw, setRaw] = useState(false);
  const shown = plain(text);
  return html`
    <div class="answer">
      <button class="chip" aria-pressed=${String(raw)} onClick=${() => setRaw(!raw)}>Raw</button>
      ${raw ? html`<pre class="text" tabindex="0" aria-label=${label}>${shown}</pre>` : html`<${Formatted} text=${shown} label=${label} />`}
    </div>`;
}
