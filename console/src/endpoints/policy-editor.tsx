import { Select } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import {
  Suspense,
  useCallback,
  useContext,
  useEffect,
  useMemo,
  useRef,
  useState,
} from 'react';
import { lazyPart } from '@/api/load';
import { isObject, text } from '@/api/json';
import { Button } from '@/ui/button';
import type { Jump } from '@/ui/code-editor';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { analyze, type Place, type Problem } from './analysis';
import { PolicyFormContext } from './policy-context';
import { masked, secretsIn } from './secrets';

const CodeEditor = lazyPart(() => import('@/ui/code-editor'));
const DryRun = lazyPart(async () => {
  const { DryRun: part } = await import('./dry-run');
  return { default: part };
});

interface Props {
  label: string;
  value: string;
  onChange: (value: string) => void;
}

/** The policies of the guide, to begin with. */
function Templates({ value, onChange }: Omit<Props, 'label'>) {
  const { data } = useQuery({
    queryKey: ['policy-templates'],
    queryFn: ({ signal }) =>
      analyze('', {}, { line: 1, column: 1 }, signal).then((answer) =>
        answer.completions.filter((one) => one.kind === 'template'),
      ),
    staleTime: Infinity,
  });
  const [chosen, setChosen] = useState<string>();
  const template = data?.find((one) => one.label === chosen);
  const isFree = value.trim() === '';
  return (
    <div className={ui.stack}>
      <Select
        label="Begin with a template"
        placeholder="Choose a task"
        data={data?.map((one) => one.label) ?? []}
        value={chosen ?? null}
        searchable
        onChange={(label) => {
          setChosen(label ?? undefined);
          const one = data?.find((each) => each.label === label);
          if (one && isFree) onChange(one.insert);
        }}
      />
      {template && !isFree && value !== template.insert ? (
        <div className={ui.actions}>
          <span className={ui.hint}>The editor has a policy already.</span>
          <Button
            size="xs"
            variant="default"
            onClick={() => onChange(template.insert)}
          >
            Replace it with the template
          </Button>
        </div>
      ) : null}
    </div>
  );
}

function Problems({
  problems,
  onChoose,
}: {
  problems: Problem[];
  onChoose: (problem: Problem) => void;
}) {
  if (problems.length === 0)
    return (
      <p className={ui.hint} role="status">
        No problems found.
      </p>
    );
  return (
    <ul className={ui.items} aria-label="Problems of the policy">
      {problems.map((problem, index) => (
        <li key={index}>
          <span
            className={ui.tag}
            data-tone={problem.severity === 'error' ? 'bad' : 'warn'}
          >
            {problem.severity}
          </span>{' '}
          <Button
            size="compact-xs"
            variant="default"
            onClick={() => onChoose(problem)}
          >
            {`Line ${problem.range.start.line}`}
          </Button>{' '}
          {problem.message}
        </li>
      ))}
    </ul>
  );
}

/** An editor of traffic policies: checked while typing, with completion, templates and a dry run. */
export function PolicyEditor({ label, value, onChange }: Props) {
  const { values, id } = useContext(PolicyFormContext);
  const [problems, setProblems] = useState<Problem[]>();
  const [failed, setFailed] = useState<Error>();
  const [isOpen, setIsOpen] = useState(false);
  const [jump, setJump] = useState<Jump>();
  const [isTried, setIsTried] = useState(false);
  const url = text(values.public_url) || text(values.url);
  const [first] = Array.isArray(values.upstreams) ? values.upstreams : [];
  const upstream =
    text(values.upstream_url) || (isObject(first) ? text(first.url) : '');
  const place = useRef<Place>({});
  useEffect(() => {
    place.current = {
      ...(id ? { endpoint_id: id } : {}),
      url,
      upstream_url: upstream,
    };
  });
  const onProblems = useCallback(
    (found: Problem[] | undefined, error?: Error) => {
      setProblems(found);
      setFailed(error);
    },
    [],
  );
  const service = useMemo(
    () => ({ place: () => place.current, onProblems }),
    [onProblems],
  );
  const hasSecrets = useMemo(() => secretsIn(value).length > 0, [value]);
  const isWeb = !/^(tcp|tls):/.test(url);
  return (
    <div className={ui.stack}>
      <Templates value={value} onChange={onChange} />
      <Suspense fallback={<pre className={ui.long}>{masked(value)}</pre>}>
        <CodeEditor
          label={label}
          language="policy"
          value={value}
          onChange={onChange}
          service={service}
          isOpen={isOpen}
          jump={jump}
        />
      </Suspense>
      {value.trim() && problems ? (
        <Problems
          problems={problems}
          onChoose={({ range }) =>
            setJump((last) => ({
              ...range.start,
              count: (last?.count ?? 0) + 1,
            }))
          }
        />
      ) : null}
      {failed ? <Failure error={failed} /> : null}
      <div className={ui.actions}>
        {hasSecrets || isOpen ? (
          <Button
            size="xs"
            variant="default"
            aria-pressed={isOpen}
            onClick={() => setIsOpen((now) => !now)}
          >
            {isOpen ? 'Hide secrets' : 'Show secrets'}
          </Button>
        ) : null}
        {id && isWeb ? (
          <Button
            size="xs"
            variant="default"
            aria-expanded={isTried}
            onClick={() => setIsTried((now) => !now)}
          >
            Try it against recent requests
          </Button>
        ) : null}
      </div>
      {id && isTried ? (
        <Suspense fallback={<Loading />}>
          <DryRun id={id} policy={value} isBeside />
        </Suspense>
      ) : null}
    </div>
  );
}
