import { LinkButton } from '@/ui/link-button';
import ui from '@/ui/ui.module.css';

export default function AgentsExtra() {
  return (
    <div className={ui.toolbar}>
      <LinkButton variant="default" to="/connect">
        Connect an agent
      </LinkButton>
    </div>
  );
}
