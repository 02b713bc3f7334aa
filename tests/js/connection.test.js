// Ways to reach the broker: TLS, a WebSocket, a ready-made signature; and what keeps a silent connection open.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { ServiceBusClient } from "@azure/service-bus";
import WebSocket from "ws";
import { LIMIT, RETRY, admin, connectionString, failure, one, open, queue, unique } from "./namespace.js";

const overTls = () => connectionString().replace(/;?UseDevelopmentEmulator=true/i, "");
const retryOptions = { ...RETRY, maxRetries: 0 };

async function sendAndReceive(client, name) {
  await client.createSender(name).sendMessages({ body: "x".repeat(200_000) });
  const receiver = client.createReceiver(name);
  const message = await one(receiver);
  assert.equal(message.body.length, 200_000);
  assert.deepEqual((await receiver.peekMessages(5)).length, 1);
  await receiver.completeMessage(message);
}

test("AMQP over TLS", LIMIT, async (t) => {
  const { name } = await queue(t);
  await sendAndReceive(open(t, overTls()), name);
});

test("AMQP over a WebSocket", LIMIT, async (t) => {
  const { name } = await queue(t);
  const client = new ServiceBusClient(overTls(), { retryOptions, webSocketOptions: { webSocket: WebSocket } });
  t.after(() => client.close());
  await sendAndReceive(client, name);
});

test("a signature opens what it was made for, and nothing else", LIMIT, async (t) => {
  const { name } = await queue(t);
  const other = unique("other");
  await admin().createQueue(other);
  const parts = Object.fromEntries(
    connectionString()
      .split(";")
      .map((part) => part.split(/=(.*)/s)),
  );
  const sr = encodeURIComponent(`${parts.Endpoint.replace(/\/$/, "")}/${name}`);
  const se = Math.floor(Date.now() / 1000) + 600;
  const sig = encodeURIComponent(createHmac("sha256", parts.SharedAccessKey).update(`${sr}\n${se}`).digest("base64"));
  const signature = `SharedAccessSignature sr=${sr}&sig=${sig}&se=${se}&skn=${parts.SharedAccessKeyName}`;
  const text = `Endpoint=${parts.Endpoint};SharedAccessSignature=${signature};UseDevelopmentEmulator=true`;
  const client = open(t, text, retryOptions);
  await sendAndReceive(client, name);
  await assert.rejects(client.createSender(other).sendMessages({ body: 1 }), failure("UnauthorizedAccess"));
});

test("a connection on which nothing is said stays open", { timeout: 90_000 }, async (t) => {
  const { name, client, sender, receiver } = await queue(t);
  const seen = [];
  const errors = [];
  receiver().subscribe({
    processMessage: async (message) => seen.push(message.body),
    processError: async ({ error }) => errors.push(error),
  });
  await sender.sendMessages({ body: "before" });
  while (seen.length === 0) await new Promise((done) => setTimeout(done, 20));
  const lost = [];
  client._connectionContext.connection.on("disconnected", () => lost.push("disconnected"));
  // Its idle time-out is 60 s: it gives up a connection on which it hears nothing for that long.
  await new Promise((done) => setTimeout(done, 64_000));
  await open(t).createSender(name).sendMessages({ body: "after" });
  while (seen.length === 1) await new Promise((done) => setTimeout(done, 20));
  assert.deepEqual([seen, errors, lost], [["before", "after"], [], []]);
});
