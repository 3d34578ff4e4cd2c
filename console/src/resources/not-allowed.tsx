import { Modal } from '@mantine/core';
import { Button } from '@/ui/button';
import ui from '@/ui/ui.module.css';

/** Says why a form is not shown, to who opened its address. */
export function NotAllowed({
  title,
  text,
  onClose,
}: {
  title: string;
  text: string;
  onClose: () => void;
}) {
  return (
    <Modal opened onClose={onClose} title={title}>
      <p>{text}</p>
      <div className={ui.formFoot}>
        <Button onClick={onClose} data-autofocus>
          Close
        </Button>
      </div>
    </Modal>
  );
}
