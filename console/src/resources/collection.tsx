import { Outlet, useParams } from '@tanstack/react-router';
import { useModel } from '@/api/document';
import { NotFound } from '@/shell/not-found';

/** The pages of one collection, if the API has it. */
export default function Collection() {
  const { collection } = useParams({ from: '/$collection' });
  return useModel().resources.has(collection.replaceAll('.', '/')) ? <Outlet key={collection} /> : <NotFound />;
}
