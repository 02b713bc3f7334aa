// The administration client over HTTPS, with the broker's own certificate authority (NODE_EXTRA_CA_CERTS).

import assert from "node:assert/strict";
import { test } from "node:test";
import { LIMIT, RETRY, admin, connectionString, failure, open, unique } from "./namespace.js";

const client = admin();
const FOREVER = /^P10675199DT2H48M5\.4775807S$/;

async function all(listing) {
  const found = [];
  for await (const item of listing) found.push(item);
  return found;
}

test("the namespace says who it is", LIMIT, async () => {
  const found = await client.getNamespaceProperties();
  assert.equal(found.name, "contoso");
  assert.equal(found.messagingSku, "Standard");
  assert.ok(found.createdAt instanceof Date && !Number.isNaN(+found.createdAt));
});

test("a queue is created, found, changed and deleted", LIMIT, async () => {
  const name = unique("queue");
  assert.equal(await client.queueExists(name), false);
  const created = await client.createQueue(name);
  assert.deepEqual(
    [created.name, created.lockDuration, created.maxSizeInMegabytes, created.maxDeliveryCount, created.status],
    [name, "PT1M", 1024, 10, "Active"],
  );
  assert.match(created.defaultMessageTimeToLive, FOREVER);
  assert.match(created.autoDeleteOnIdle, FOREVER);
  assert.deepEqual([created.requiresSession, created.requiresDuplicateDetection], [false, false]);
  assert.equal(created.availabilityStatus, "Available");
  assert.equal(await client.queueExists(name), true);
  const found = await client.getQueue(name);
  found.lockDuration = "PT2M";
  found.maxDeliveryCount = 3;
  found.userMetadata = "<notes> & more";
  const changed = await client.updateQueue(found);
  assert.deepEqual(
    [changed.lockDuration, changed.maxDeliveryCount, changed.userMetadata],
    ["PT2M", 3, "<notes> & more"],
  );
  assert.equal((await client.getQueue(name)).maxDeliveryCount, 3);
  await client.deleteQueue(name);
  assert.equal(await client.queueExists(name), false);
  await assert.rejects(client.getQueue(name), failure("MessageEntityNotFoundError"));
});

test("a queue with everything", LIMIT, async () => {
  const options = {
    lockDuration: "PT45S",
    maxSizeInMegabytes: 2048,
    requiresDuplicateDetection: true,
    requiresSession: true,
    defaultMessageTimeToLive: "P2D",
    deadLetteringOnMessageExpiration: true,
    duplicateDetectionHistoryTimeWindow: "PT2M",
    maxDeliveryCount: 14,
    enableBatchedOperations: false,
    status: "ReceiveDisabled",
    userMetadata: "mine",
    autoDeleteOnIdle: "PT1H",
  };
  const created = await client.createQueue(unique("queue"), options);
  for (const [name, value] of Object.entries(options)) assert.deepEqual(created[name], value, name);
  const found = await client.getQueue(created.name);
  for (const [name, value] of Object.entries(options)) assert.deepEqual(found[name], value, name);
});

test("a queue may have a path and keys of its own", LIMIT, async (t) => {
  const name = `${unique("path")}/to/queue`;
  const rule = {
    claimType: "SharedAccessKey",
    accessRights: ["Send"],
    keyName: "sender",
    primaryKey: Buffer.from("a".repeat(32)).toString("base64"),
    secondaryKey: Buffer.from("b".repeat(32)).toString("base64"),
  };
  const created = await client.createQueue(name, { authorizationRules: [rule] });
  assert.equal(created.name, name);
  const [found] = (await client.getQueue(name)).authorizationRules;
  assert.deepEqual([found.keyName, found.primaryKey, found.accessRights], ["sender", rule.primaryKey, ["Send"]]);
  const limited = connectionString()
    .replace(/SharedAccessKeyName=[^;]*/, "SharedAccessKeyName=sender")
    .replace(/SharedAccessKey=[^;]*/, `SharedAccessKey=${rule.secondaryKey}`);
  const connection = open(t, limited, { ...RETRY, maxRetries: 0 });
  await connection.createSender(name).sendMessages({ body: "by key" });
  await assert.rejects(
    connection.createReceiver(name).receiveMessages(1, { maxWaitTimeInMs: 500 }),
    failure("UnauthorizedAccess"),
  );
  const message = await open(t).createReceiver(name).receiveMessages(1, { maxWaitTimeInMs: 5_000 });
  assert.equal(message[0].body, "by key");
});

test("what exists already, what is missing and what can't be", LIMIT, async () => {
  const name = unique("queue");
  await client.createQueue(name);
  await assert.rejects(client.createQueue(name), failure("MessageEntityAlreadyExistsError"));
  await assert.rejects(client.createTopic(name), failure("MessageEntityAlreadyExistsError"));
  await assert.rejects(client.deleteQueue(unique("none")), failure("MessageEntityNotFoundError"));
  await assert.rejects(client.createQueue(unique("queue"), { lockDuration: "PT1H" }), failure("ServiceError"));
  const found = await client.getQueue(name);
  await assert.rejects(client.updateQueue({ ...found, requiresSession: true }), failure("ServiceError"));
  await assert.rejects(client.updateQueue({ ...found, name: unique("none") }), failure("MessageEntityNotFoundError"));
});

test("a wrong key is not let in", LIMIT, async () => {
  const wrong = admin(connectionString().replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=bm90IHRoZSBrZXk="));
  await assert.rejects(wrong.getNamespaceProperties(), failure("UnauthorizedRequestError"));
});

test("runtime counts of a queue", LIMIT, async (t) => {
  const name = unique("queue");
  await client.createQueue(name);
  const connection = open(t);
  const sender = connection.createSender(name);
  await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
  await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 600_000));
  const receiver = connection.createReceiver(name);
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5_000 });
  await receiver.deadLetterMessage(message);
  const counts = await client.getQueueRuntimeProperties(name);
  assert.deepEqual(
    [counts.activeMessageCount, counts.deadLetterMessageCount, counts.scheduledMessageCount, counts.totalMessageCount],
    [2, 1, 1, 4],
  );
  assert.deepEqual([counts.transferMessageCount, counts.transferDeadLetterMessageCount], [0, 0]);
  assert.ok(counts.sizeInBytes > 0);
  assert.ok(counts.createdAt <= counts.accessedAt && counts.createdAt <= counts.modifiedAt);
  const listed = (await all(client.listQueuesRuntimeProperties())).find((item) => item.name === name);
  assert.equal(listed.totalMessageCount, 4);
});

test("queues are listed page by page", LIMIT, async () => {
  const prefix = unique("listed");
  const names = [1, 2, 3, 4, 5].map((number) => `${prefix}-${number}`);
  for (const name of names) await client.createQueue(name);
  assert.deepEqual(
    (await all(client.listQueues())).map((item) => item.name).filter((n) => n.startsWith(prefix)),
    names,
  );
  const pages = [];
  for await (const page of client.listQueues().byPage({ maxPageSize: 2 })) {
    assert.ok(page.length <= 2);
    pages.push(...page.map((item) => item.name));
  }
  assert.deepEqual(
    pages.filter((name) => name.startsWith(prefix)),
    names,
  );
});

test("topics and subscriptions are created, changed, listed, counted and deleted", LIMIT, async (t) => {
  const name = unique("topic");
  const topic = await client.createTopic(name, { defaultMessageTimeToLive: "P1D", userMetadata: "t" });
  assert.deepEqual([topic.name, topic.defaultMessageTimeToLive, topic.userMetadata], [name, "P1D", "t"]);
  topic.userMetadata = "changed";
  assert.equal((await client.updateTopic(topic)).userMetadata, "changed");
  assert.equal(await client.topicExists(name), true);
  assert.equal(await client.subscriptionExists(name, "one"), false);
  const options = {
    lockDuration: "PT30S",
    maxDeliveryCount: 5,
    deadLetteringOnMessageExpiration: true,
    deadLetteringOnFilterEvaluationExceptions: false,
    defaultMessageTimeToLive: "PT12H",
    userMetadata: "s",
  };
  const one = await client.createSubscription(name, "one", options);
  assert.deepEqual([one.topicName, one.subscriptionName, one.requiresSession], [name, "one", false]);
  for (const [field, value] of Object.entries(options)) assert.deepEqual(one[field], value, field);
  one.maxDeliveryCount = 6;
  assert.equal((await client.updateSubscription(one)).maxDeliveryCount, 6);
  await client.createSubscription(name, "two");
  await assert.rejects(client.createSubscription(name, "two"), failure("MessageEntityAlreadyExistsError"));
  await assert.rejects(client.createSubscription(unique("none"), "x"), failure("MessageEntityNotFoundError"));
  const listed = await all(client.listSubscriptions(name));
  assert.deepEqual(
    listed.map((item) => [item.topicName, item.subscriptionName]),
    [
      [name, "one"],
      [name, "two"],
    ],
  );

  await open(t)
    .createSender(name)
    .sendMessages([{ body: 1 }, { body: 2 }]);
  const counts = await client.getSubscriptionRuntimeProperties(name, "one");
  assert.deepEqual([counts.activeMessageCount, counts.totalMessageCount], [2, 2]);
  const both = await all(client.listSubscriptionsRuntimeProperties(name));
  assert.deepEqual(
    both.map((item) => item.activeMessageCount),
    [2, 2],
  );
  const runtime = await client.getTopicRuntimeProperties(name);
  assert.deepEqual([runtime.name, runtime.subscriptionCount, runtime.scheduledMessageCount], [name, 2, 0]);
  assert.ok((await all(client.listTopics())).some((item) => item.name === name));
  assert.ok((await all(client.listTopicsRuntimeProperties())).some((item) => item.name === name));

  await client.deleteSubscription(name, "one");
  assert.equal(await client.subscriptionExists(name, "one"), false);
  await client.deleteTopic(name);
  assert.equal(await client.topicExists(name), false);
  await assert.rejects(client.getSubscription(name, "two"), failure("MessageEntityNotFoundError"));
});

test("rules are created, found, changed, listed and deleted", LIMIT, async () => {
  const name = unique("topic");
  await client.createTopic(name);
  await client.createSubscription(name, "sub");
  const [standard] = await all(client.listRules(name, "sub"));
  assert.deepEqual(
    [standard.name, standard.filter.sqlExpression, standard.action.sqlExpression],
    ["$Default", "1=1", undefined],
  );
  const when = new Date(1_700_000_000_000);
  const applicationProperties = { text: "x & <y>", real: 1.5, flag: true, when };
  const created = await client.createRule(name, "sub", "mine", {
    subject: "s",
    correlationId: "c",
    applicationProperties,
  });
  assert.equal(created.name, "mine");
  const found = await client.getRule(name, "sub", "mine");
  assert.deepEqual([found.filter.subject, found.filter.correlationId], ["s", "c"]);
  assert.deepEqual(
    { ...found.filter.applicationProperties, when: +found.filter.applicationProperties.when },
    {
      ...applicationProperties,
      when: +when,
    },
  );
  found.filter = { to: "there" };
  await client.updateRule(name, "sub", found);
  const changed = await client.getRule(name, "sub", "mine");
  assert.deepEqual([changed.filter.to, changed.filter.subject], ["there", undefined]);
  await assert.rejects(client.createRule(name, "sub", "mine", { to: "x" }), failure("MessageEntityAlreadyExistsError"));
  assert.deepEqual((await all(client.listRules(name, "sub"))).map((rule) => rule.name).sort(), ["$Default", "mine"]);
  await client.deleteRule(name, "sub", "$Default");
  assert.equal(await client.ruleExists(name, "sub", "$Default"), false);
  assert.equal(await client.ruleExists(name, "sub", "mine"), true);
  await assert.rejects(client.deleteRule(name, "sub", "$Default"), failure("MessageEntityNotFoundError"));
});

test("a subscription may start with a rule of its own", LIMIT, async () => {
  const name = unique("topic");
  await client.createTopic(name);
  await client.createSubscription(name, "sub", { defaultRuleOptions: { name: "first", filter: { subject: "s" } } });
  const rules = await all(client.listRules(name, "sub"));
  assert.deepEqual(
    rules.map((rule) => [rule.name, rule.filter.subject]),
    [["first", "s"]],
  );
  await client.createRule(name, "sub", "all", { sqlExpression: "1=1" });
  assert.equal((await client.getRule(name, "sub", "all")).filter.sqlExpression, "1=1");
});
