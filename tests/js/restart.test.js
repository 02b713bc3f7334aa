// The broker goes away and comes back: clients that were there before go on by themselves.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Broker } from "./broker.js";
import { LIMIT, WAIT, admin, bodies, one, open, receive, unique, until } from "./namespace.js";

const PATIENT = { maxRetries: 50, retryDelayInMs: 200, timeoutInMs: 5_000 };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

test("senders, receivers and flows outlive a broker that is stopped", LIMIT, (t) => outlive(t, "SIGTERM"));

test("senders, receivers and flows outlive a broker that is killed", LIMIT, (t) => outlive(t, "SIGKILL"));

async function outlive(t, signal) {
  const broker = new Broker(t);
  await broker.start();
  const names = { flowing: unique("flowing"), waiting: unique("waiting"), asked: unique("asked") };
  for (const name of Object.values(names)) await admin(broker.connectionString).createQueue(name);
  const client = open(t, broker.connectionString, PATIENT);
  const senders = Object.fromEntries(Object.entries(names).map(([role, name]) => [role, client.createSender(name)]));

  const seen = [];
  const flow = client.createReceiver(names.flowing).subscribe({
    processMessage: async (message) => seen.push(message.body),
    processError: async () => {},
  });
  await senders.flowing.sendMessages([{ body: 0 }, { body: 1 }]);
  await until(() => seen.length === 2, "the first messages of the flow");
  const asked = client.createReceiver(names.asked, { receiveMode: "receiveAndDelete" });
  await senders.asked.sendMessages([{ body: "first" }, { body: "kept" }]);
  assert.equal((await one(asked)).body, "first");

  await broker.end(signal);
  // A port where nobody listens is no reason for this SDK to try again by itself.
  await assert.rejects(senders.flowing.sendMessages({ body: "lost" }));
  await broker.start();
  for (const body of [2, 3]) {
    await until(
      () =>
        senders.flowing.sendMessages({ body }).then(
          () => true,
          () => false,
        ),
      "the sender goes on",
    );
  }
  await until(() => seen.includes(2) && seen.includes(3), "the flow goes on", 15_000);
  assert.deepEqual([...new Set(seen)], [0, 1, 2, 3]);
  assert.equal((await one(asked)).body, "kept");
  await senders.waiting.sendMessages({ body: "new" });
  const waiting = client.createReceiver(names.waiting);
  const message = await one(waiting);
  await waiting.completeMessage(message);
  await flow.close();
}

test("what was confirmed before a kill is there after it", LIMIT, async (t) => {
  const broker = new Broker(t);
  await broker.start();
  const management = admin(broker.connectionString);
  const [plain, sessions] = [unique("plain"), unique("sessions")];
  await management.createQueue(plain);
  await management.createQueue(sessions, { requiresSession: true });
  const client = open(t, broker.connectionString, PATIENT);
  const sender = client.createSender(plain);
  await sender.sendMessages(["deferred", "dead", "plain"].map((body) => ({ body })));
  const receiver = client.createReceiver(plain);
  const [deferred, dead, kept] = await receive(receiver, 3);
  await receiver.deferMessage(deferred);
  await receiver.deadLetterMessage(dead);
  await receiver.abandonMessage(kept);
  await sender.scheduleMessages({ body: "scheduled" }, new Date(Date.now() + 1_500));
  await client.createSender(sessions).sendMessages({ body: "s", sessionId: "s" });
  const session = await client.acceptSession(sessions, "s");
  await session.setSessionState({ page: 3 });
  await pause(300);
  await broker.end("SIGKILL");
  await broker.start();

  const again = open(t, broker.connectionString, PATIENT);
  const source = again.createReceiver(plain);
  const [found] = await source.receiveDeferredMessages(deferred.sequenceNumber);
  assert.equal(found.body, "deferred");
  assert.equal((await one(again.createReceiver(plain, { subQueueType: "deadLetter" }))).body, "dead");
  assert.deepEqual(bodies(await receive(source, 2, WAIT)).sort(), ["plain", "scheduled"]);
  const reopened = await again.acceptSession(sessions, "s");
  assert.deepEqual(await reopened.getSessionState(), { page: 3 });
  assert.equal((await one(reopened)).body, "s");
});
