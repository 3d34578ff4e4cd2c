import {
  autocompletion,
  closeBrackets,
  type Completion,
  type CompletionContext,
} from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { yaml } from '@codemirror/lang-yaml';
import {
  bracketMatching,
  HighlightStyle,
  indentOnInput,
  syntaxHighlighting,
} from '@codemirror/language';
import { Annotation, EditorState, type Extension } from '@codemirror/state';
import { EditorView, keymap, lineNumbers, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { useEffect, useRef } from 'react';
import catalogue from '@/live/catalogue.json';
import {
  masking,
  policyService,
  type Service,
  showSecrets,
} from './code-editor-policy';

export const look = EditorView.theme({
  '&': {
    fontSize: '13px',
    color: 'var(--text)',
    background: 'var(--surface)',
    border: '1px solid var(--line-strong)',
    borderRadius: '6px',
  },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '1px' },
  '.cm-content': {
    fontFamily: 'var(--mono)',
    padding: '8px 0',
    caretColor: 'var(--text)',
  },
  '.cm-scroller': { maxHeight: '440px', overflow: 'auto' },
  '.cm-gutters': {
    background: 'var(--sunken)',
    color: 'var(--dim)',
    border: 'none',
    borderRadius: '6px 0 0 6px',
  },
  '.cm-placeholder': { color: 'var(--mantine-color-placeholder)' },
  '.cm-tooltip': {
    background: 'var(--surface)',
    border: '1px solid var(--line-strong)',
    borderRadius: '6px',
  },
  '.cm-tooltip-autocomplete ul li[aria-selected]': {
    background: 'var(--accent-back)',
    color: 'inherit',
  },
  '.cm-selectionBackground': { background: 'var(--accent-back) !important' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-tooltip .cm-described, .cm-completionInfo .cm-described': {
    maxWidth: '420px',
    maxHeight: '280px',
    overflow: 'auto',
    padding: '6px 10px',
  },
  '.cm-described p': { margin: '0 0 6px' },
  '.cm-described pre': {
    margin: '0 0 6px',
    fontSize: '12px',
    whiteSpace: 'pre-wrap',
  },
  '.cm-masked': {
    color: 'var(--dim)',
    background: 'var(--sunken)',
    borderRadius: '4px',
    padding: '0 4px',
  },
  // The pictures of the library are of one theme only.
  '.cm-lintRange-error': {
    backgroundImage: 'none',
    textDecoration: 'underline wavy var(--bad)',
  },
  '.cm-lintRange-warning': {
    backgroundImage: 'none',
    textDecoration: 'underline wavy var(--warn)',
  },
  '.cm-diagnostic-error': { borderLeftColor: 'var(--bad)' },
  '.cm-diagnostic-warning': { borderLeftColor: 'var(--warn)' },
});
const policyLook = EditorView.theme({ '.cm-content': { minHeight: '150px' } });

export const colours = syntaxHighlighting(
  HighlightStyle.define([
    {
      tag: [tags.propertyName, tags.definition(tags.propertyName)],
      color: 'var(--accent)',
    },
    { tag: tags.string, color: 'var(--warn)' },
    {
      tag: tags.comment,
      color: 'var(--dim)',
      fontStyle: 'italic',
    },
    { tag: [tags.number, tags.bool, tags.null], color: 'var(--ok)' },
  ]),
);

const words = (labels: string[], type: string): Completion[] =>
  labels.map((label) => ({ label, type }));
const CEL = [
  ...[
    ...new Map(
      Object.values(catalogue.fields)
        .flat()
        .filter((field) => field.filterable)
        .map((field) => [field.name, field.meaning]),
    ),
  ].map(([name, meaning]): Completion => ({
    label: `ev.${name}`,
    info: meaning,
    type: 'property',
  })),
  ...words(
    ['startsWith', 'endsWith', 'contains', 'matches', 'size', 'has'],
    'function',
  ),
];

function complete(options: Completion[]) {
  return (context: CompletionContext) => {
    const word = context.matchBefore(/[\w.-]+/);
    return word || context.explicit
      ? { from: word?.from ?? context.pos, options }
      : null;
  };
}

/** Marks a text that came from outside of the editor: who gave it knows it. */
const given = Annotation.define<boolean>();

/** A line to show, and a number that changes each time. */
export interface Jump {
  line: number;
  column: number;
  count: number;
}

interface Props {
  label: string;
  language: 'policy' | 'cel';
  value: string;
  onChange: (value: string) => void;
  /** The help of the server for policies. */
  service?: Service;
  /** Whether the secrets of a policy are shown. */
  isOpen?: boolean;
  jump?: Jump | undefined;
  /** Has the focus when the form around it opens. */
  isFirst?: boolean | undefined;
}

function extensionsOf(
  { label, language, service }: Props,
  onChange: (value: string) => void,
): Extension {
  return [
    history(),
    bracketMatching(),
    closeBrackets(),
    indentOnInput(),
    look,
    colours,
    EditorView.lineWrapping,
    keymap.of([...defaultKeymap, ...historyKeymap]),
    language === 'policy'
      ? [
          yaml(),
          lineNumbers(),
          policyLook,
          masking,
          service ? policyService(service) : [],
          placeholder(
            'on_http_request:\n  - actions:\n      - type: compress-response',
          ),
        ]
      : [
          autocompletion({ override: [complete(CEL)] }),
          placeholder('ev.conn.server_port == 443'),
        ],
    EditorView.contentAttributes.of({ 'aria-label': label }),
    EditorView.updateListener.of((update) => {
      const isTyped = !update.transactions.some((one) => one.annotation(given));
      if (update.docChanged && isTyped) onChange(update.state.doc.toString());
    }),
  ];
}

/**
 * An editor with completion. It lives in a shadow root, because only there does CodeMirror put its styles into an adopted
 * sheet; a style tag would be refused by the page's content security policy.
 */
export default function CodeEditor(props: Props) {
  const { label, language, value, onChange, isOpen = false, jump } = props;
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const changed = useRef(onChange);
  useEffect(() => {
    changed.current = onChange;
  });
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const root = element.shadowRoot ?? element.attachShadow({ mode: 'open' });
    const editor = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: value,
        extensions: extensionsOf(props, (next) => changed.current(next)),
      }),
    });
    view.current = editor;
    // It comes after the form, which gave the focus to its button meanwhile.
    if (props.isFirst) editor.focus();
    return () => editor.destroy();
    // The editor is made once; what is typed is its own state.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [label, language]);
  useEffect(() => {
    const editor = view.current;
    if (editor && editor.state.doc.toString() !== value)
      editor.dispatch({
        changes: { from: 0, to: editor.state.doc.length, insert: value },
        annotations: given.of(true),
      });
  }, [value]);
  useEffect(() => {
    if (language === 'policy')
      view.current?.dispatch({ effects: showSecrets.of(isOpen) });
    // Only a change hides what was typed meanwhile.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [isOpen]);
  useEffect(() => {
    const editor = view.current;
    if (!editor || !jump) return;
    const line = editor.state.doc.line(
      Math.min(jump.line, editor.state.doc.lines),
    );
    const anchor = Math.min(line.from + jump.column - 1, line.to);
    editor.dispatch({ selection: { anchor }, scrollIntoView: true });
    editor.focus();
  }, [jump]);
  // Escape closes a list of completions here, and not the panel around the editor.
  return (
    <div ref={host} data-editor={label} data-mantine-stop-propagation="true" />
  );
}
