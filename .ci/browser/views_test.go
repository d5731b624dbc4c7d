package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// axe returns the source of axe-core, which npm installs as it is pinned.
func axe(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("axe")); err != nil {
		t.Fatal(err)
	}
	install(t, dir)
	source, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// install installs what the package-lock.json of a directory pins.
func install(t *testing.T, dir string) {
	t.Helper()
	ctx, end := context.WithTimeoutCause(t.Context(), 5*patience, errors.New("npm takes too long"))
	defer end()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Skipf("needs the npm registry: %v\n%s", err, out)
	}
}

// numbers are what differs between addresses of one view.
var numbers = regexp.MustCompile(`ses_[0-9A-Z]{26}|\d+`)

// views follows the links of the page and returns one address of each kind.
func views(b *tab, first ...string) []string {
	b.t.Helper()
	seen, todo := map[string]bool{}, first
	var found []string
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		kind := numbers.ReplaceAllString(path, "N")
		if seen[kind] {
			continue
		}
		seen[kind] = true
		found = append(found, path)
		b.open(path)
		b.shows("main")
		for _, link := range get[[]string](b, `[...document.links].filter(a => a.origin === location.origin).map(a => a.pathname + a.search)`) {
			if !strings.Contains(link, "/find?") && !strings.HasPrefix(link, "/b/") { // these lead to views that are known
				todo = append(todo, link)
			}
		}
	}
	return found
}

// TestViews looks at every view in both colours and on a narrow and a wide screen. axe-core
// finds nothing, nothing is wider than the screen, and there are pictures if SCREENSHOTS
// names a directory.
func TestViews(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"cart": cart, "good": goodModel, "bad": badModel})
	batch := s.runBatch()
	id, turn := s.session("cart", "make the discount count")
	s.answer(id, turn, "allow", "")
	s.answer(id, turn, "deny", "it is still needed")
	s.await(id, "idle")
	waiting, _ := s.session("cart", "another task")
	s.question(waiting)

	source := axe(t)
	b := s.tab(t, true)
	b.run(call(page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true})) // axe-core adds a style to the page
	b.open("/login")
	// The control: faults that axe-core finds, on a page that has none.
	if found := b.violations(source); len(found) > 0 {
		t.Errorf("/login: %q", found)
	}
	get[chromedp.Void](b, `document.querySelector("main").append(Object.assign(document.createElement("img"), {src: "data:,"}), Object.assign(document.createElement("input"), {id: "bare"}))`)
	if found := strings.Join(b.violations(source), "\n"); !strings.Contains(found, "image-alt") || !strings.Contains(found, "label") {
		t.Errorf("the control's faults are not found: %s", found)
	}

	b.signIn("alice")
	paths := append(views(b, "/", "/s/"+waiting, "/s/"+id, "/s/"+id+"/changes", "/nothing"), "/s/"+id, "/login")
	paths = append(paths, s.batchViews(batch)...)
	slices.Sort(paths)
	paths = slices.Compact(paths)
	t.Logf("views: %q", paths)
	if links := get[[]string](b, `fetch("/b").then(r => r.text()).then(t => [...t.matchAll(/href="([^"]*)/g)].map(m => m[1]))`); !slices.Contains(links, batch) {
		t.Errorf("no link leads to %s: %q", batch, links)
	}
	for _, want := range []string{"/", "/doctor", "/b", "/s/" + id + "/changes", "/s/" + id + "/timeline"} {
		if !slices.ContainsFunc(paths, func(p string) bool { return numbers.ReplaceAllString(p, "N") == numbers.ReplaceAllString(want, "N") }) {
			t.Errorf("no link leads to %s", want)
		}
	}
	for _, path := range paths {
		b.open(path)
		b.shows("main")
		name := "page-" + strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ReplaceAll(strings.ReplaceAll(path, id, "done"), waiting, "waiting"), "-"), "-")
		b.look(source, name, `document.readyState === "complete" && (!document.querySelector("#story") || document.querySelector("#story .step"))`, 320, 1200)
	}
}

// violations returns what axe-core finds on the page.
func (b *tab) violations(axe string) []string {
	b.t.Helper()
	return get[[]string](b, axe+`;axe.run().then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target + " " + n.html.slice(0, 200) + " " + (n.any[0] ?? n.all[0] ?? n.none[0])?.message)))`)
}

// look looks at the page in both colours and several widths, each time when it is ready: axe-core
// finds nothing, and nothing is wider than the screen. If SCREENSHOTS names a directory, it
// keeps a picture of each.
func (b *tab) look(axe, name, ready string, widths ...int64) {
	b.t.Helper()
	for _, width := range widths {
		for _, scheme := range []string{"light", "dark"} {
			b.run(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1}),
				call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
					{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
				}}))
			b.wait(fmt.Sprintf(`innerWidth === %d && matchMedia("(prefers-color-scheme: %s)").matches && (%s)`, width, scheme, ready))
			for _, v := range b.violations(axe) {
				b.t.Errorf("%s, %s, %d px: %s", name, scheme, width, v)
			}
			if is := get[int64](b, "document.documentElement.scrollWidth"); is > width {
				b.t.Errorf("%s is %d px wide on a screen of %d px: %s", name, is, width, get[string](b, fmt.Sprintf(
					`[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > %d).slice(0, 5).map(e => e.outerHTML.slice(0, 100)).join(" … ")`, width)))
			}
			if dir := os.Getenv("SCREENSHOTS"); dir != "" { // on a screen as high as the page
				b.run(call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: max(900, get[int64](b, "document.documentElement.scrollHeight")), DeviceScaleFactor: 1}))
				b.wait(ready)
				b.shoot(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)))
			}
		}
	}
}

// shoot writes a picture of the window.
func (b *tab) shoot(path string) {
	b.t.Helper()
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		shot, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{})
		return errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, shot.Data, 0o644))
	}))
}
