// Loads an exported folder in transformers.js without network and writes what it gives for some texts.
// node load_in_client.mjs FOLDER TEXTS.json OUT.json
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, texts, out] = process.argv.slice(2).map((name) => path.resolve(name));
// The package lies beside the folder this is run in, not beside this file.
const found = createRequire(path.join(process.cwd(), 'here.js')).resolve('@huggingface/transformers');
const { AutoModelForSequenceClassification, AutoTokenizer, env, pipeline } = await import(pathToFileURL(found).href);
env.localModelPath = path.dirname(folder) + path.sep;
env.allowRemoteModels = false;
const name = path.basename(folder);
const given = JSON.parse(readFileSync(texts, 'utf8'));
const config = JSON.parse(readFileSync(path.join(folder, 'config.json'), 'utf8'));
let output;
if (config.architectures[0].endsWith('ForSequenceClassification')) {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModelForSequenceClassification.from_pretrained(name, { dtype: 'q8' });
  output = (await model(tokenizer(given, { padding: true, truncation: true }))).logits;
} else {
  const normalize = readFileSync(path.join(folder, 'modules.json'), 'utf8').includes('Normalize');
  const run = await pipeline('feature-extraction', name, { dtype: 'q8' });
  output = await run(given, { pooling: 'mean', normalize });
}
writeFileSync(out, JSON.stringify(output.tolist()));
