import { Button } from '@/ui/button';
import { LinkButton } from '@/ui/link-button';
import ui from '@/ui/ui.module.css';
import { FEWEST, MOST } from './compared';

/** Leads to the comparison of the chosen endpoints. */
export default function CompareBar({ ids }: { ids: ReadonlySet<string> }) {
  const isFit = ids.size >= FEWEST && ids.size <= MOST;
  return (
    <div className={ui.toolbar} role="group" aria-label="Comparison">
      <span role="status">
        {isFit
          ? `${ids.size} endpoints chosen.`
          : `Choose ${FEWEST} to ${MOST} endpoints; ${ids.size} chosen.`}
      </span>
      {isFit ? (
        <LinkButton to="/compare" search={{ endpoints: [...ids].join(',') }}>
          Compare them
        </LinkButton>
      ) : (
        <Button disabled>Compare them</Button>
      )}
    </div>
  );
}
