// What goes wrong reaches the caller under the SDK's own names.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  GLANCE,
  LIMIT,
  RETRY,
  admin,
  bodies,
  connectionString,
  failure,
  one,
  open,
  queue,
  topic,
  unique,
} from "./namespace.js";

const withKey = (key) => connectionString().replace(/SharedAccessKey=[^;]*/, `SharedAccessKey=${key}`);
const patient = { ...RETRY, maxRetries: 0 };

test("an entity that is not there", LIMIT, async (t) => {
  const client = open(t);
  const name = unique("none");
  await assert.rejects(client.createSender(name).sendMessages({ body: 1 }), failure("MessagingEntityNotFound"));
  await assert.rejects(client.createSender(name).createMessageBatch(), failure("MessagingEntityNotFound"));
  await assert.rejects(client.createReceiver(name).receiveMessages(1, GLANCE), failure("MessagingEntityNotFound"));
  await assert.rejects(client.createReceiver(name).peekMessages(1), failure("MessagingEntityNotFound"));
});

test("a subscription that is not there", LIMIT, async (t) => {
  const { name, client } = await topic(t, {});
  const receiver = client.createReceiver(name, "none");
  await assert.rejects(receiver.receiveMessages(1, GLANCE), failure("MessagingEntityNotFound"));
});

test("subscribe tells of an entity that is not there", LIMIT, async (t) => {
  const receiver = open(t).createReceiver(unique("none"));
  const error = await new Promise((tell) => {
    receiver.subscribe({ processMessage: async () => {}, processError: async (args) => tell(args.error) });
  });
  assert.equal(error.code, "MessagingEntityNotFound");
  await receiver.close();
});

test("a wrong key", LIMIT, async (t) => {
  const { name } = await queue(t);
  const client = open(t, withKey("bm90IHRoZSBrZXk="), patient);
  await assert.rejects(client.createSender(name).sendMessages({ body: 1 }), failure("UnauthorizedAccess"));
  await assert.rejects(client.createReceiver(name).receiveMessages(1, GLANCE), failure("UnauthorizedAccess"));
});

test("a queue that is deleted under its clients", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  await sender.sendMessages({ body: 1 });
  const source = receiver();
  await one(source);
  await admin().deleteQueue(name);
  await assert.rejects(sender.sendMessages({ body: 2 }), failure("MessagingEntityNotFound"));
  await assert.rejects(source.receiveMessages(1, GLANCE), failure("MessagingEntityNotFound"));
});

test("a queue that takes or gives nothing", LIMIT, async (t) => {
  const { name, sender, receiver } = await queue(t);
  const management = admin();
  await sender.sendMessages({ body: "before" });
  await management.updateQueue({ ...(await management.getQueue(name)), status: "SendDisabled" });
  await assert.rejects(sender.sendMessages({ body: "no" }), failure("MessagingEntityDisabled"));
  assert.equal((await one(receiver({ receiveMode: "receiveAndDelete" }))).body, "before");
  await management.updateQueue({ ...(await management.getQueue(name)), status: "ReceiveDisabled" });
  await sender.sendMessages({ body: "after" });
  await assert.rejects(receiver().receiveMessages(1, GLANCE), failure("MessagingEntityDisabled"));
  await management.updateQueue({ ...(await management.getQueue(name)), status: "Active" });
  assert.equal((await one(receiver())).body, "after");
});

test("a call that is given up leaves the link in order", LIMIT, async (t) => {
  const { sender, receiver } = await queue(t);
  const source = receiver();
  for (let round = 0; round < 3; round += 1) {
    const abort = new AbortController();
    setTimeout(() => abort.abort(), 100);
    await assert.rejects(
      source.receiveMessages(5, { maxWaitTimeInMs: 10_000, abortSignal: abort.signal }),
      (error) => error.name === "AbortError",
    );
  }
  // The credit of a call that was given up stays out: what comes before the next call, the SDK drops.
  const waiting = source.receiveMessages(2, { maxWaitTimeInMs: 5_000 });
  await sender.sendMessages([{ body: 1 }, { body: 2 }]);
  assert.deepEqual(bodies(await waiting), [1, 2]);
});

test("a closed client says so, and closing twice is fine", LIMIT, async (t) => {
  const { client, sender, receiver } = await queue(t);
  const source = receiver();
  await sender.sendMessages({ body: 1 });
  await sender.close();
  await sender.close();
  await assert.rejects(sender.sendMessages({ body: 2 }), /closed/);
  await client.close();
  await client.close();
  await assert.rejects(source.receiveMessages(1), /closed/);
});
