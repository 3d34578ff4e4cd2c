import { Navigate, Outlet, useLocation, useParams } from '@/routing/view';
import { useModel } from '@/api/document';
import NotFound from '@/shell/not-found';
import { meantBy } from '@/shell/other-names';

/** The pages of one collection, if the API has it; else the page that the address means. */
export default function Collection() {
  const { collection } = useParams({ from: '/$collection' });
  const { pathname } = useLocation();
  const model = useModel();
  if (model.resources.has(collection.replaceAll('.', '/')))
    return <Outlet key={collection} />;
  const to = meantBy(model, pathname);
  return to ? <Navigate to={to} search={true} /> : <NotFound />;
}
