// What every test needs: clients of the namespace in PAIRBUS_CONNECTION_STRING that are closed after the test, and
// entities of its own. Retries are few and short, so that an error is seen instead of waited for.

import { randomUUID } from "node:crypto";
import { after } from "node:test";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

// A client that a failed test has left behind does not keep the file from ending.
after(() => setTimeout(() => process.exit(), 3_000).unref());

export const RETRY = { maxRetries: 1, retryDelayInMs: 100, timeoutInMs: 10_000 };
export const WAIT = { maxWaitTimeInMs: 5_000 };
/** Of one test; a call that stalls is named instead of waited for. */
export const LIMIT = { timeout: 30_000 };
/** Long enough for what is there already. */
export const GLANCE = { maxWaitTimeInMs: 300 };

export function connectionString() {
  const found = process.env.PAIRBUS_CONNECTION_STRING;
  if (!found) throw new Error("PAIRBUS_CONNECTION_STRING is not set; tests/broker/test_sdk_js.py does it");
  return found;
}

export function open(t, text = connectionString(), retryOptions = RETRY) {
  const client = new ServiceBusClient(text, { retryOptions });
  // A test that has failed may have left it in a state that it can't be closed in.
  t.after(() => Promise.race([client.close(), new Promise((done) => setTimeout(done, 2_000).unref())]));
  return client;
}

export function admin(text = connectionString()) {
  return new ServiceBusAdministrationClient(text, { retryOptions: { maxRetries: 0 } });
}

export function unique(kind) {
  return `${kind}-${randomUUID().slice(0, 8)}`;
}

/** A queue of the test's own, with a client, a sender and a maker of receivers. */
export async function queue(t, options = {}) {
  const name = unique("queue");
  await admin().createQueue(name, options);
  const client = open(t);
  return {
    name,
    client,
    sender: client.createSender(name),
    receiver: (more = {}) => client.createReceiver(name, more),
    deadLetters: () => client.createReceiver(name, { subQueueType: "deadLetter" }),
  };
}

/** A topic with subscriptions, by name, each with its options. */
export async function topic(t, subscriptions, options = {}) {
  const name = unique("topic");
  const management = admin();
  await management.createTopic(name, options);
  for (const [subscription, more] of Object.entries(subscriptions)) {
    await management.createSubscription(name, subscription, more);
  }
  const client = open(t);
  return {
    name,
    client,
    sender: client.createSender(name),
    receiver: (subscription, more = {}) => client.createReceiver(name, subscription, more),
  };
}

/** The SDK answers with what came shortly after the first message: asks again until there are enough. */
export async function receive(receiver, count, wait = WAIT) {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, wait);
    if (more.length === 0) break;
    messages.push(...more);
  }
  return messages;
}

export async function one(receiver) {
  const [message] = await receive(receiver, 1);
  if (message === undefined) throw new Error(`no message came on ${receiver.entityPath}`);
  return message;
}

export function bodies(messages) {
  return messages.map((message) => message.body);
}

export async function until(condition, what, timeoutInMs = 10_000) {
  const deadline = Date.now() + timeoutInMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${timeoutInMs} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

export function failure(code) {
  return (thrown) => {
    const [error] = thrown.errors ?? [thrown]; // of several attempts
    if (error.code !== code) throw new Error(`expected ${code}, not ${error.code}: ${error.stack}`);
    return true;
  };
}
