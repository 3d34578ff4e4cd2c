import { LinkButton } from '@/ui/link-button';
import { Page } from '@/ui/page';
import { Empty } from '@/ui/states';

export function NotFound() {
  return (
    <Page title="Not found">
      <Empty title="There is no such page" text="The address may be of another version of culvert." action={<LinkButton to="/">Go to the overview</LinkButton>} />
    </Page>
  );
}
