import { yaml } from '@codemirror/lang-yaml';
import { unifiedMergeView } from '@codemirror/merge';
import { EditorState } from '@codemirror/state';
import { EditorView, lineNumbers } from '@codemirror/view';
import { useEffect, useRef } from 'react';
import { colours, look } from './code-editor';

const marks = EditorView.theme({
  '.cm-changedLine, .cm-insertedLine': { background: 'var(--ok-back)' },
  '.cm-deletedChunk': { background: 'var(--bad-back)' },
  '.cm-changedText, .cm-deletedText': { background: 'none' },
  '.cm-insertedLine, .cm-deletedLine, .cm-deletedLine del': {
    textDecoration: 'none',
  },
  '.cm-collapsedLines': {
    background: 'var(--sunken)',
    color: 'var(--dim)',
  },
});

interface Props {
  label: string;
  before: string;
  after: string;
}

/** Two texts as one: what is removed, and what is added. */
export default function CodeDiff({ label, before, after }: Props) {
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const root = element.shadowRoot ?? element.attachShadow({ mode: 'open' });
    const editor = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: after,
        extensions: [
          lineNumbers(),
          yaml(),
          look,
          colours,
          marks,
          EditorView.lineWrapping,
          EditorState.readOnly.of(true),
          unifiedMergeView({
            original: before,
            mergeControls: false,
            gutter: true,
            collapseUnchanged: { margin: 3, minSize: 6 },
          }),
          EditorView.contentAttributes.of({ 'aria-label': label }),
        ],
      }),
    });
    return () => editor.destroy();
  }, [label, before, after]);
  return <div ref={host} data-editor={label} />;
}
