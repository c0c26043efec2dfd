// A session reported from TypeScript with Temporal's own client: the messages are plain JSON (docs/other-languages.md).
// Beside `affidavit dev`:  npm ci && npm start
import { randomUUID } from 'node:crypto';
import { Client, Connection } from '@temporalio/client';

interface Outcome {
  status: string;
  receipt_id: string;
  totals: Record<string, number>;
}

const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS ?? 'localhost:7233' });
const client = new Client({ connection });

const spec = { agent: { version: '1.0', charter: 'weather desk', instance_uid: 'typescript-1' } };
const session = await client.workflow.start('AgentSession', {
  args: [spec],
  workflowId: `typescript-${randomUUID()}`,
  taskQueue: process.env.AFFIDAVIT_TASK_QUEUE ?? 'affidavit',
});

// A producer numbers its steps, so that a signal which is sent again is taken once. One signal in flight at a time.
const producer = randomUUID();
let number = 0;
const record = (...steps: object[]) =>
  session.signal('record', { steps: steps.map((step) => ({ ...step, producer, producer_seq: ++number })) });

// Ask before the model is called; a refusal says why.
const attempt = randomUUID();
const admission = await session.executeUpdate<{ accepted: boolean; refused?: { reason: string } }, [object]>('admit', {
  args: [{ attempt_id: attempt }],
});
if (!admission.accepted) throw new Error(admission.refused?.reason);

await record({
  kind: 'model_request',
  attempt_id: attempt,
  messages: [{ role: 'user', content: 'How warm is Oslo?' }],
});
await record(
  {
    kind: 'model_response',
    attempt_id: attempt,
    finish_reason: 'tool_calls',
    tool_calls: [{ call_id: 'c1', name: 'temperature', arguments: { city: 'Oslo' } }],
    usage: { prompt_tokens: 64, completion_tokens: 15 },
  },
  { kind: 'tool_call', call_id: 'c1', tool: 'temperature', allowed: true, arguments: { city: 'Oslo' } },
  { kind: 'tool_result', call_id: 'c1', content: 2 },
);

await session.executeUpdate('close');
const outcome = (await session.result()) as Outcome;
console.log(`session ${session.workflowId} ${outcome.status}, receipt ${outcome.receipt_id}`);
await connection.close();
