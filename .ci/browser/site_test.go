//go:build site

package browser

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// linksOfSite reads pages and returns the links and images that lead nowhere on the site, and the
// links that leave it.
const linksOfSite = `(async pages => {
	const read = async page => [page, new DOMParser().parseFromString(await (await fetch(page)).text(), "text/html")];
	const documents = new Map(await Promise.all(pages.map(read)));
	const broken = [], outside = [];
	for (const [page, document] of documents) for (const element of document.querySelectorAll("[href], [src]")) {
		const link = element.getAttribute("href") ?? element.getAttribute("src");
		const to = new URL(link, location.origin + page);
		if (to.origin !== location.origin) { outside.push(to.href); continue; }
		const there = documents.get(to.pathname.replace(/\/$/, "/index.html"));
		if (there ? to.hash && !there.getElementById(decodeURIComponent(to.hash.slice(1))) : !(await fetch(to.pathname, {method: "HEAD"})).ok)
			broken.push(page + " -> " + link);
	}
	return {broken: [...new Set(broken)], outside: [...new Set(outside)]};
})(%s)`

// TestSite builds the site of the documentation. Its links lead somewhere; links to other servers
// are not followed. It looks at pages of each kind as TestViews does, and searches.
func TestSite(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("needs chromium")
	}
	dir := t.TempDir()
	install(t, "../site")
	build := exec.CommandContext(t.Context(), "npm", "run", "build", "--", "--outDir", dir)
	build.Dir = "../site"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pages := []string{"/caisson/control"}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".html") && path != "404.html" {
			pages = append(pages, "/caisson/"+path)
		}
		return err
	})
	if err != nil || len(pages) < 60 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	mux := http.NewServeMux()
	mux.Handle("/caisson/", http.StripPrefix("/caisson/", http.FileServer(http.Dir(dir))))
	mux.HandleFunc("/caisson/control", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `<a href="docs/">fine</a><a href="docs/agents.html#nothing"></a><img src="nothing.png">`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s := &site{t: t, base: server.URL, log: &buffer{}}
	b := s.tab(t, true)

	b.open("/caisson/")
	links := get[struct{ Broken, Outside []string }](b, fmt.Sprintf(linksOfSite, quote(pages)))
	control := []string{"/caisson/control -> docs/agents.html#nothing", "/caisson/control -> nothing.png"}
	if !slices.Equal(links.Broken, control) {
		t.Errorf("links that lead nowhere: %q, want those of the control: %q", links.Broken, control)
	}
	inRepository := 0
	for _, link := range links.Outside {
		for _, prefix := range []string{"https://github.com/caisson-run/caisson/blob/main/", "https://github.com/caisson-run/caisson/edit/main/"} {
			if path, ok := strings.CutPrefix(link, prefix); ok {
				inRepository++
				if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
					t.Errorf("a link to %s: %v", link, err)
				}
			}
		}
	}
	if inRepository < 60 {
		t.Errorf("%d links to files of the repository in %q", inRepository, links.Outside)
	}

	source := axe(t)
	const ready = `document.readyState === "complete" && document.querySelector("#app").__vue_app__ && document.documentElement.classList.contains("dark") === matchMedia("(prefers-color-scheme: dark)").matches`
	for name, path := range map[string]string{"front": "", "sandbox": "docs/sandbox.html", "benchmarks": "docs/benchmarks.html", "commands": "docs/commands/run.html"} {
		b.open("/caisson/" + path)
		b.look(source, "site-"+name, ready, 320, 768, 1200)
	}
	b.open("/caisson/")
	b.wait(ready)
	b.click(".VPNavBarSearch button")
	b.shows("#localsearch-input")
	b.enters("overlay")
	b.shows(".VPLocalSearchBox .result")
	b.look(source, "site-search", ready, 320, 768, 1200)
	b.press(kb.Enter)
	b.wait(`location.pathname !== "/caisson/" && /overlay/i.test(document.querySelector("main")?.textContent)`)
	b.check()
}
