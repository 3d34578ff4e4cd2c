import { LinkButton } from '@/ui/link-button';
import { Page } from '@/ui/page';
import { Empty } from '@/ui/states';

export default function NotFound() {
  return (
    <Page title="Not found">
      <Empty
        title="There is no such page"
        text="The address may be of another version of culvert, or of a page that your role does not have. “Go to…” finds pages and objects by name or ID."
        action={<LinkButton to="/">Go to the overview</LinkButton>}
      />
    </Page>
  );
}
