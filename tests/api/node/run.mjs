// Runs the tests of one file: an object of async functions. Prints "N passed, N failed".
export async function run(tests) {
  let passed = 0, failed = 0;
  for (const [name, fn] of Object.entries(tests)) {
    try {
      await fn();
      passed++;
    } catch (e) {
      failed++;
      console.log(`${name}: ${e.stack}`);
    }
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
