import {
  autocompletion,
  type Completion,
  type CompletionContext,
} from '@codemirror/autocomplete';
import { type Diagnostic, linter, lintGutter } from '@codemirror/lint';
import {
  type EditorState,
  type Extension,
  StateEffect,
  StateField,
  type Text,
} from '@codemirror/state';
import {
  Decoration,
  type DecorationSet,
  EditorView,
  hoverTooltip,
  WidgetType,
} from '@codemirror/view';
import {
  type Analysis,
  analyze,
  type Place,
  type Position,
  type Problem,
  type Range,
} from '@/endpoints/analysis';
import { MASK, secretsIn } from '@/endpoints/secrets';

const DELAY_MS = 400;
const TYPES = {
  template: 'text',
  field: 'property',
  action: 'class',
  value: 'enum',
  variable: 'variable',
  function: 'function',
};

function offset(doc: Text, { line, column }: Position): number {
  const at = doc.line(Math.min(Math.max(line, 1), doc.lines));
  return Math.min(at.from + column - 1, at.to);
}

function position(doc: Text, at: number): Position {
  const line = doc.lineAt(at);
  return { line: line.number, column: at - line.from + 1 };
}

const span = (doc: Text, range: Range) => ({
  from: offset(doc, range.start),
  to: offset(doc, range.end),
});

/** The few marks of the reference's Markdown, as elements. */
export function described(doc: string): HTMLElement {
  const root = document.createElement('div');
  root.className = 'cm-described';
  const put = (parent: HTMLElement, name: string, value: string) => {
    const element = document.createElement(name);
    element.textContent = value;
    parent.append(element);
    return element;
  };
  for (const [index, part] of doc.split('```').entries()) {
    if (index % 2) {
      put(root, 'pre', part.replace(/^\w*\n/, '').trimEnd());
      continue;
    }
    for (const paragraph of part.split('\n\n').filter((one) => one.trim())) {
      const element = put(root, 'p', '');
      for (const [at, piece] of paragraph
        .trim()
        .split(/(`[^`]+`|\*\*[^*]+\*\*)/)
        .entries()) {
        if (at % 2 === 0) element.append(piece);
        else if (piece.startsWith('`'))
          put(element, 'code', piece.slice(1, -1));
        else put(element, 'strong', piece.slice(2, -2));
      }
    }
  }
  return root;
}

class Masked extends WidgetType {
  override toDOM() {
    const element = document.createElement('span');
    element.textContent = MASK;
    element.className = 'cm-masked';
    element.setAttribute('role', 'img');
    element.setAttribute('aria-label', 'hidden secret');
    return element;
  }
}

const mask = Decoration.replace({ widget: new Masked() });

/** Shows the secrets, or hides those that the text has now. */
export const showSecrets = StateEffect.define<boolean>();

const hide = (doc: Text): DecorationSet =>
  Decoration.set(
    secretsIn(doc.toString()).map(([from, to]) => mask.range(from, to)),
  );

/** Secrets that were there when the text was given. What is typed beside them is seen by who types it. */
const secrets = StateField.define<DecorationSet>({
  create: (state) => hide(state.doc),
  update(hidden, change) {
    let next = hidden.map(change.changes);
    for (const effect of change.effects)
      if (effect.is(showSecrets))
        next = effect.value ? Decoration.none : hide(change.state.doc);
    return next;
  },
  provide: (field) => [
    EditorView.decorations.from(field),
    EditorView.atomicRanges.of((view) => view.state.field(field)),
  ],
});

/** A copy has no secret that was not asked for. */
const copies = EditorView.clipboardOutputFilter.of((text, state) => {
  const hidden: string[] = [];
  state.field(secrets).between(0, state.doc.length, (from, to) => {
    hidden.push(state.sliceDoc(from, to));
  });
  return hidden.reduce((shown, secret) => shown.replaceAll(secret, MASK), text);
});

export const masking: Extension = [secrets, copies];

export interface Service {
  place: () => Place;
  /** Called with the problems of the text, and nothing while they are not known. */
  onProblems: (problems: Problem[] | undefined, failed?: Error) => void;
}

function check({ place, onProblems }: Service): Extension {
  let running: AbortController | undefined;
  return linter(
    async (view): Promise<Diagnostic[]> => {
      // A newer text makes the answer to the older one worthless.
      running?.abort();
      const mine = new AbortController();
      running = mine;
      const { doc } = view.state;
      try {
        const { problems } = await analyze(
          doc.toString(),
          place(),
          undefined,
          mine.signal,
        );
        if (view.state.doc.eq(doc)) onProblems(problems);
        return problems.map((problem) => ({
          ...span(doc, problem.range),
          severity: problem.severity,
          message: problem.message,
        }));
      } catch (error) {
        if (!mine.signal.aborted) onProblems(undefined, error as Error);
        return [];
      }
    },
    { delay: DELAY_MS },
  );
}

async function ask(
  state: EditorState,
  at: number,
  place: Place,
  signal?: AbortSignal,
): Promise<Analysis | undefined> {
  try {
    return await analyze(
      state.doc.toString(),
      place,
      position(state.doc, at),
      signal,
    );
  } catch {
    // Help that does not come is no problem of the text.
    return undefined;
  }
}

function complete({ place }: Service) {
  return async (context: CompletionContext) => {
    const before = context.matchBefore(/[\w.-]+|[:[{]\s*|^\s*(- )?/);
    if (!before && !context.explicit) return null;
    const running = new AbortController();
    context.addEventListener('abort', () => running.abort());
    const { state, pos } = context;
    const answer = await ask(state, pos, place(), running.signal);
    if (!answer?.replaces || context.aborted) return null;
    const { from } = span(state.doc, answer.replaces);
    const total = answer.completions.length;
    return {
      from,
      validFor: /^[\w-]*$/,
      options: answer.completions.map((one, rank): Completion => ({
        label: one.label,
        detail: one.detail.split('\n')[0] ?? '',
        type: TYPES[one.kind],
        apply: one.insert,
        // The order of the server: required fields are first.
        boost: 50 - Math.floor((100 * rank) / total),
        ...(one.doc ? { info: () => described(one.doc) } : {}),
      })),
    };
  };
}

function explain({ place }: Service): Extension {
  return hoverTooltip(async (view, at) => {
    const { state } = view;
    const answer = await ask(state, at, place());
    const hover = answer?.hover;
    if (!hover || !view.state.doc.eq(state.doc)) return null;
    const { from, to } = span(state.doc, hover.range);
    return {
      pos: from,
      end: to,
      create: () => ({ dom: described(hover.doc) }),
    };
  });
}

/** Problems, completion and hover of the server. */
export function policyService(service: Service): Extension {
  return [
    lintGutter(),
    check(service),
    autocompletion({ override: [complete(service)] }),
    explain(service),
  ];
}
