// The second broker, to be ended and started again on the same port and data; PAIRBUS_SPARE is its command line.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export class Broker {
  constructor(t) {
    this.command = JSON.parse(process.env.PAIRBUS_SPARE);
    t.after(() => {
      this.over = true; // a test that has failed may still be running
      return this.end("SIGKILL");
    });
  }

  async start() {
    if (this.over) throw new Error("the test is over");
    const [program, ...args] = this.command;
    this.process = spawn(program, args, { stdio: ["ignore", "pipe", "ignore"] });
    const [line] = await once(createInterface(this.process.stdout), "line");
    this.connectionString = JSON.parse(line).connection_string;
  }

  async end(signal) {
    const { process } = this;
    this.process = undefined;
    if (process === undefined) return;
    const exited = once(process, "exit");
    process.kill(signal);
    await exited;
  }
}
