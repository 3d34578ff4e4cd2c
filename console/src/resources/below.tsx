import { useQuery } from '@tanstack/react-query';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { isObject, type JsonObject, text } from '@/api/json';
import { type Operation, type Resource, listIn } from '@/api/model';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { humanize } from '@/api/words';
import { items } from './names';
import { ResourceTable } from './table';
import { Fields } from './value';

/** What belongs to one object: each reading operation below it is a section. */
export function Below({
  resource,
  object,
  handled,
}: {
  resource: Resource;
  object: JsonObject;
  handled: string[];
}) {
  const shown = resource.below.filter(
    (one) =>
      one.method === 'GET' &&
      !handled.includes(one.command) &&
      !/\{(?!id\})/.test(one.path),
  );
  return shown.map((operation) => (
    <BelowSection
      key={operation.id}
      resource={resource}
      operation={operation}
      object={object}
    />
  ));
}

function BelowSection({
  resource,
  operation,
  object: parent,
}: {
  resource: Resource;
  operation: Operation;
  object: JsonObject;
}) {
  const id = text(parent.id);
  const model = useModel();
  const answer = useQuery({
    queryKey: [resource.name, 'below', id, operation.id],
    queryFn: ({ signal }) =>
      call(
        'GET',
        operation.path.replace('{id}', encodeURIComponent(id)),
        undefined,
        signal,
      ),
  });
  const list = listIn(model.schemas, operation.answer);
  const title = humanize(
    operation.path.slice(operation.path.lastIndexOf('/') + 1),
  );
  const found = list && answer.data ? items(answer.data, list.key) : [];
  const owner = [...model.resources.values()].find(
    (one) =>
      list &&
      one.item.properties &&
      Object.keys(one.item.properties).join() ===
        Object.keys(list.item.properties ?? {}).join(),
  );
  return (
    <Section title={title}>
      {answer.isPending ? <Loading /> : null}
      {answer.error ? <Failure error={answer.error} /> : null}
      {list && answer.data && found.length === 0 ? (
        <p className={ui.dim}>None.</p>
      ) : null}
      {owner && found.length > 0 ? (
        <ResourceTable
          resource={owner}
          objects={found}
          label={title}
          parent={parent}
        />
      ) : null}
      {owner
        ? null
        : found.map((object, index) => (
            <Fields key={index} value={object} schema={list?.item} />
          ))}
      {!list && isObject(answer.data) ? (
        <Fields value={answer.data} schema={operation.answer} />
      ) : null}
    </Section>
  );
}
