// The site: README.md and docs/ as they are, at the same paths. Titles come from the
// headings, and the sidebar from docs/index.md.
import { readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { defineConfig } from 'vitepress'

const top = new URL('../../../', import.meta.url)
const repository = 'https://github.com/caisson-run/caisson'
const read = (file) => readFileSync(new URL(file, top), 'utf8')
// GitHub shows README.md for its directory, and so does the site.
const asIndex = (file) => file.replace(/(^|\/)README\.md$/, '$1index.md')

const entry = (file) => ({
  text: read(file).match(/^# (.*)/m)[1].replaceAll('`', ''),
  link: '/' + asIndex(file).replace(/(index)?\.md$/, ''),
  ...(file.endsWith('/README.md') && { collapsed: true, items: pagesBeside(file) })
})
const pagesBeside = (file) => readdirSync(new URL('.', new URL(file, top)))
  .filter((name) => name.endsWith('.md') && name !== 'README.md')
  .map((name) => entry(posix.join(posix.dirname(file), name)))

// A section of docs/index.md begins with its name and a colon. The first link to a page that
// names no heading puts the page in the sidebar.
const sidebar = read('docs/index.md').split(/^(?=[A-Z][\w ]+:)/m).slice(1).map((section) => ({
  text: section.slice(0, section.indexOf(':')),
  items: [...new Set([...section.matchAll(/\]\(([^)#:]+\.md)\)/g)].map((m) => posix.join('docs', m[1])))].map(entry)
}))

// Links to files that are no pages, such as code, lead to the repository. An empty cell heads
// nothing.
const adapt = (md) => md.core.ruler.push('site', ({ tokens, env }) => {
  tokens.forEach((t, i) => {
    if (t.type === 'inline' && !t.content && tokens[i - 1].tag === 'th') tokens[i - 1].tag = tokens[i + 1].tag = 'td'
  })
  for (const link of tokens.flatMap((t) => t.children ?? []).filter((t) => t.type === 'link_open')) {
    const href = link.attrGet('href')
    const [, file, anchor] = href.match(/^([^#:]+)(#.*)?$/) ?? []
    if (!file) continue
    const isPage = /\.md$/.test(file)
    link.attrSet('href', isPage ? asIndex(file) + (anchor ?? '') : `${repository}/blob/main/${posix.join(posix.dirname(env.relativePath), file)}`)
  }
})

const plugin = {
  name: 'site',
  enforce: 'pre',
  // Pages lie outside this directory, whose packages they import.
  resolveId: (id, _, { ssr }) => ssr && /^vue(\/|$)/.test(id) ? { id, external: true } : undefined,
  // The search is a dialog with a list of links. Its roles of a button and of options would hide
  // the links from screen readers, and its labels lack the text that is seen. Without a role, its
  // keys may have no labels.
  transform: (code, id) => id.endsWith('/VPLocalSearchBox.vue')
    ? code.replace('role="button"', 'role="dialog" aria-modal="true"').replaceAll('<kbd ', '<kbd role="img" ').replace(/\s(role="option"|:role="[^"]*"|:aria-label="\[[^"]*"|:?aria-(owns|expanded|haspopup|selected)="[^"]*")/g, '')
    : undefined
}

export default defineConfig({
  title: 'Caisson',
  description: "Runs an LLM agent's commands in a sandbox",
  lang: 'en',
  base: '/caisson/',
  srcDir: '../..',
  srcExclude: ['!(docs|examples|images)/**/*.md', 'examples/*/*/**/*.md'],
  ignoreDeadLinks: 'localhostLinks', // examples
  outDir: '../../dist/site',
  cacheDir: 'node_modules/.cache',
  rewrites: asIndex,
  sitemap: { hostname: 'https://caisson-run.github.io/caisson/' },
  markdown: {
    // GitHub's anchors
    anchor: { slugify: (heading) => heading.trim().toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-') },
    attrs: { disable: true },
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    config: adapt
  },
  vite: { plugins: [plugin] },
  themeConfig: {
    nav: [
      { text: 'Documentation', link: '/docs/' },
      { text: 'Commands', link: '/docs/commands/' },
      { text: 'Changes', link: '/CHANGELOG' }
    ],
    sidebar,
    outline: [2, 3],
    search: { provider: 'local' },
    editLink: { pattern: `${repository}/edit/main/:path`, text: 'Edit this page' },
    socialLinks: [{ icon: 'github', link: repository }],
    notFound: { title: 'Page not found', quote: 'The address has no page.', linkLabel: 'Front page', linkText: 'To the front page' }
  }
})
