import { Tabs } from '@mantine/core';
import { useState } from 'react';
import { type JsonObject, text } from '@/api/json';
import type { Operation } from '@/api/model';
import { masked, secretsIn } from '@/endpoints/secrets';
import { Button } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import ui from '@/ui/ui.module.css';
import { asCommand, asCurl } from './commands';

interface Props {
  collection: string;
  operation: Operation;
  path: string;
  id?: string | undefined;
  body: JsonObject;
}

/** What the form does, as a command to keep. */
export function CommandsOf({
  collection,
  operation,
  path,
  id,
  body: whole,
}: Props) {
  const [isOpen, setIsOpen] = useState(false);
  const policy = text(whole.traffic_policy);
  const hasSecrets = secretsIn(policy).length > 0;
  const body =
    hasSecrets && !isOpen
      ? { ...whole, traffic_policy: masked(policy) }
      : whole;
  return (
    <details className={ui.commands}>
      <summary>As a command</summary>
      <Tabs defaultValue="culvert" keepMounted={false}>
        <Tabs.List aria-label="As a command">
          <Tabs.Tab value="culvert">culvert api</Tabs.Tab>
          <Tabs.Tab value="curl">curl</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="culvert" pt="xs">
          <CopyBlock
            value={asCommand(collection, operation, id, body)}
            label="the command"
          />
        </Tabs.Panel>
        <Tabs.Panel value="curl" pt="xs">
          <CopyBlock
            value={asCurl(operation, path, body)}
            label="the curl command"
          />
        </Tabs.Panel>
      </Tabs>
      {hasSecrets ? (
        <Button
          size="xs"
          variant="default"
          aria-pressed={isOpen}
          onClick={() => setIsOpen((now) => !now)}
        >
          {isOpen ? 'Hide secrets' : 'Show secrets'}
        </Button>
      ) : null}
    </details>
  );
}
