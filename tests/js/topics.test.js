// Topics, subscriptions and the rule manager.

import assert from "node:assert/strict";
import { test } from "node:test";
import { GLANCE, LIMIT, admin, bodies, failure, one, receive, topic } from "./namespace.js";

async function rulesOf(manager) {
  const rules = [];
  for await (const rule of manager.listRules()) rules.push(rule);
  return rules.filter((rule) => rule !== undefined); // what the SDK gives for none at all
}

test("every subscription gets its own copy", LIMIT, async (t) => {
  const { sender, receiver } = await topic(t, { one: {}, two: {} });
  await sender.sendMessages([{ body: 1, applicationProperties: { n: 1 } }, { body: 2 }]);
  const first = receiver("one");
  const messages = await receive(first, 2);
  assert.deepEqual(bodies(messages), [1, 2]);
  for (const message of messages) await first.completeMessage(message);
  const second = await receive(receiver("two"), 2);
  assert.deepEqual(bodies(second), [1, 2]);
  assert.equal(second[0].applicationProperties.n, 1);
  assert.deepEqual(await first.receiveMessages(1, GLANCE), []);
});

test("a batch to a topic is copied whole", LIMIT, async (t) => {
  const { sender, receiver } = await topic(t, { one: {}, two: {}, three: {} });
  const batch = await sender.createMessageBatch();
  for (let number = 0; number < 100; number += 1) assert.ok(batch.tryAddMessage({ body: number }));
  await sender.sendMessages(batch);
  for (const name of ["one", "two", "three"]) {
    const got = await receive(receiver(name, { receiveMode: "receiveAndDelete" }), 100);
    assert.deepEqual(bodies(got), [...Array(100).keys()]);
  }
});

test("a subscription has dead letters, deferral and peek of its own", LIMIT, async (t) => {
  const { name, sender, receiver } = await topic(t, { one: {}, two: {} });
  await sender.sendMessages([{ body: "dead" }, { body: "deferred" }]);
  const source = receiver("one");
  const [dead, deferred] = await receive(source, 2);
  await source.deadLetterMessage(dead, { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  await source.deferMessage(deferred);
  const buried = await one(receiver("one", { subQueueType: "deadLetter" }));
  assert.deepEqual([buried.body, buried.deadLetterReason], ["dead", "r"]);
  const [asked] = await source.receiveDeferredMessages(deferred.sequenceNumber);
  await source.completeMessage(asked);
  assert.deepEqual(bodies(await receiver("two").peekMessages(5)), ["dead", "deferred"]);
  const counts = await admin().getSubscriptionRuntimeProperties(name, "one");
  assert.deepEqual([counts.activeMessageCount, counts.deadLetterMessageCount], [0, 1]);
});

test("subscribe to a subscription", LIMIT, async (t) => {
  const { sender, receiver } = await topic(t, { all: {} });
  const got = [];
  const done = new Promise((resolve, fail) => {
    receiver("all").subscribe({
      processMessage: async (message) => {
        got.push(message.body);
        if (got.length === 20) resolve();
      },
      processError: async ({ error }) => fail(error),
    });
  });
  await sender.sendMessages([...Array(20).keys()].map((body) => ({ body })));
  await done;
  assert.deepEqual(got, [...Array(20).keys()]);
});

test("the rule manager shows, adds and deletes rules, and messages follow them", LIMIT, async (t) => {
  const { name, client, sender, receiver } = await topic(t, { some: {} });
  const manager = client.createRuleManager(name, "some");
  assert.deepEqual(await rulesOf(manager), [{ name: "$Default", filter: { sqlExpression: "1=1" }, action: {} }]);
  await manager.createRule("red", { applicationProperties: { colour: "red" } });
  await manager.createRule("urgent", { subject: "urgent" });
  assert.deepEqual((await rulesOf(manager)).map((rule) => rule.name).sort(), ["$Default", "red", "urgent"]);
  await manager.deleteRule("$Default");
  await sender.sendMessages([
    { body: "red", applicationProperties: { colour: "red" } },
    { body: "blue", applicationProperties: { colour: "blue" } },
    { body: "urgent", subject: "urgent", applicationProperties: { colour: "blue" } },
    { body: "both", subject: "urgent", applicationProperties: { colour: "red" } },
    { body: "none" },
  ]);
  const source = receiver("some", { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(source, 4, { maxWaitTimeInMs: 500 })), ["red", "urgent", "both"]);
  await manager.deleteRule("red");
  await manager.deleteRule("urgent");
  assert.deepEqual(await rulesOf(manager), []);
  await sender.sendMessages({ body: "nobody" });
  assert.deepEqual(await source.receiveMessages(1, GLANCE), []);
});

test("every field of a correlation filter is kept and matched", LIMIT, async (t) => {
  const { name, client, sender, receiver } = await topic(t, { some: {} });
  const manager = client.createRuleManager(name, "some");
  await manager.deleteRule("$Default");
  const fields = {
    correlationId: "c",
    messageId: "m",
    to: "t",
    replyTo: "r",
    subject: "l",
    sessionId: "s",
    replyToSessionId: "rs",
    contentType: "text/plain",
  };
  const filter = { ...fields, applicationProperties: { text: "x", whole: 5, real: 2.5, flag: true } };
  await manager.createRule("all", filter);
  assert.deepEqual(await rulesOf(manager), [{ name: "all", filter, action: {} }]);
  const matching = { ...fields, applicationProperties: { ...filter.applicationProperties, more: 1 } };
  await sender.sendMessages({ body: "match", ...matching });
  for (const field of Object.keys(fields)) await sender.sendMessages({ body: field, ...matching, [field]: "other" });
  for (const [key, value] of Object.entries({ text: "y", whole: 6, real: 3.5, flag: false })) {
    const applicationProperties = { ...matching.applicationProperties, [key]: value };
    await sender.sendMessages({ body: key, ...matching, applicationProperties });
  }
  const source = receiver("some", { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(source, 2, { maxWaitTimeInMs: 500 })), ["match"]);
});

test("true and false as the JS SDK writes them", LIMIT, async (t) => {
  const { name, client, sender, receiver } = await topic(t, { some: {} });
  const manager = client.createRuleManager(name, "some");
  await manager.deleteRule("$Default");
  await manager.createRule("never", { sqlExpression: "1=0" });
  await sender.sendMessages({ body: "no" });
  await manager.createRule("always", { sqlExpression: "1=1" });
  await sender.sendMessages({ body: "yes" });
  const source = receiver("some", { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(source, 2, { maxWaitTimeInMs: 500 })), ["yes"]);
  const found = Object.fromEntries((await rulesOf(manager)).map((rule) => [rule.name, rule.filter.sqlExpression]));
  assert.deepEqual(found, { never: "1=0", always: "1=1" });
});

test("a rule that exists and one that does not", LIMIT, async (t) => {
  const { name, client } = await topic(t, { some: {} });
  const manager = client.createRuleManager(name, "some");
  await manager.createRule("twice", { subject: "x" });
  await assert.rejects(manager.createRule("twice", { subject: "y" }), failure("MessagingEntityAlreadyExists"));
  await assert.rejects(manager.deleteRule("missing"), failure("MessagingEntityNotFound"));
});

test("rules are listed page by page", LIMIT, async (t) => {
  const { name, client } = await topic(t, { some: {} });
  const manager = client.createRuleManager(name, "some");
  for (let number = 0; number < 7; number += 1) await manager.createRule(`rule-${number}`, { subject: `${number}` });
  const pages = [];
  for await (const page of manager.listRules().byPage({ maxPageSize: 3 })) pages.push(page.map((rule) => rule.name));
  assert.deepEqual(
    pages.map((page) => page.length),
    [3, 3, 2],
  );
  assert.equal(new Set(pages.flat()).size, 8);
});
