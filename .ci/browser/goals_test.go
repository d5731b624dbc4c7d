//go:build goals

package browser

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var (
	recordID = regexp.MustCompile(`"(rec|trn|tool|call|toolu)_[0-9A-Za-z]+"`)
	seqField = regexp.MustCompile(`"seq":\d+`)
	prevHash = regexp.MustCompile(`"prev":"[0-9a-f]{64}"`)
)

// multiply writes a trace with the records of another one, whose turn is repeated until
// there are most records.
func multiply(t *testing.T, lines []string, id, session, to string, most int) {
	t.Helper()
	first := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"kind":"turn.started"`) })
	last := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"kind":"turn.completed"`) })
	if first < 0 || last < first {
		t.Fatal("the session has no turn")
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(to, "trace.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	prev, seq := strings.Repeat("0", 64), 0
	write := func(line string, round int) {
		seq++
		line = strings.ReplaceAll(line, id, session)
		if round > 0 {
			line = recordID.ReplaceAllStringFunc(line, func(old string) string { // of equal length
				n := strconv.Itoa(round)
				return old[:len(old)-1-len(n)] + n + `"`
			})
		}
		line = seqField.ReplaceAllString(line, `"seq":`+strconv.Itoa(seq))
		line = prevHash.ReplaceAllString(line, `"prev":"`+prev+`"`)
		sum := sha256.Sum256([]byte(line))
		prev = hex.EncodeToString(sum[:])
		_, _ = w.WriteString(line + "\n") // Flush reports it
	}
	for _, line := range lines[:first] {
		write(line, 0)
	}
	for round := 0; ; round++ {
		for _, line := range lines[first : last+1] {
			write(line, round)
		}
		if seq+len(lines)-last >= most {
			break
		}
	}
	for _, line := range lines[last+1:] {
		write(line, 0)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// goals are figures beside what they should be at most.
type goals struct{ strings.Builder }

func (g *goals) add(what, goal, format string, got ...any) {
	fmt.Fprintf(g, "%s\t%s\t%s\n", what, goal, fmt.Sprintf(format, got...))
}

// print writes the figures as one table.
func (g *goals) print(t *testing.T) {
	t.Helper()
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	if _, err := table.Write([]byte("\nmeasured\tgoal\tgot\n" + g.String())); err != nil {
		t.Fatal(err)
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
}

// TestGoals measures the goals of the page and prints them as a table:
//
//	go test -C .ci/browser -tags goals -run TestGoals -v -timeout 1h
func TestGoals(t *testing.T) {
	var g goals
	defer g.print(t)
	s := newHome(t, map[string]string{"cart": cart})
	s.serve("cart")
	id, turn := s.session("cart", "make the discount count")
	s.answer(id, turn, "allow", "")
	s.answer(id, turn, "deny", "no")
	s.await(id, "idle")
	s.api("DELETE", "/sessions/"+id, nil, nil)
	s.await(id, "ended")
	sessions := filepath.Join(s.home, ".local", "state", "caisson", "sessions")
	text, err := os.ReadFile(filepath.Join(sessions, id, "trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := range 10_000 {
		one := fmt.Sprintf("%s%06d", id[:len(id)-6], i)
		multiply(t, lines, id, one, filepath.Join(sessions, one), 1)
	}
	long, other := id[:len(id)-6]+"ZZZZZZ", id[:len(id)-6]+"ZZZZZY" // the newest
	for _, one := range []string{long, other} {
		multiply(t, lines, id, one, filepath.Join(sessions, one), 100_000)
	}
	if out, err := s.command("trace", "verify", long).CombinedOutput(); err != nil {
		t.Fatalf("the long session is not whole: %v\n%s", err, out)
	}

	b := s.tab(t, true).signIn("alice")
	// The first search needs all of the index.
	took := get[float64](b, fmt.Sprintf(`(begin => fetch("/s/%s/find?failure=prev").then(r => r.text()).then(() => performance.now() - begin))(performance.now())`, other))
	g.add("index of 100,000 records", "100,000 records/s", "%.0f records/s, %.0f ms", 100_000*1000/took, took)
	for _, path := range []string{"/", "/?show=failed", "/?q=discount", "/doctor", "/b", "/s/" + long, "/s/" + long + "?at=50000", "/s/" + long + "/changes", "/s/" + long + "/timeline", "/s/" + long + "/records", "/s/" + id} {
		var paints []float64
		for range 6 {
			b.open(path)
			b.wait(`performance.getEntriesByName("first-contentful-paint").length`)
			paints = append(paints, get[float64](b, `performance.getEntriesByName("first-contentful-paint")[0].startTime`))
		}
		first := paints[0]
		slices.Sort(paints)
		g.add("first paint of "+strings.NewReplacer(long, "LONG", id, "SHORT").Replace(path), "200 ms", "first %.0f ms, median %.0f ms", first, paints[len(paints)/2])
		g.add("  its elements", "3,000", "%d", get[int](b, `document.querySelectorAll("*").length`))
		t.Logf("%s: ms to the first and last byte, the document and the first paint: %v", path, get[[]float64](b,
			`(n => [n.responseStart, n.responseEnd, n.domInteractive, performance.getEntriesByName("first-contentful-paint")[0].startTime].map(Math.round))(performance.getEntriesByType("navigation")[0])`))
	}
	g.add("script and style", "40 KB", "%.1f KB", get[float64](b, `performance.getEntriesByType("resource").filter(r => r.name.includes("/assets/")).reduce((n, r) => n + r.encodedBodySize, 0) / 1000`))

	b.open("/s/" + long)
	b.shows("#story .step")
	frames := get[map[string]float64](b, `new Promise(done => {
		let last = performance.now(), slow = 0, n = 0, most = 0
		const step = now => {
			n++
			if (now - last > 50) slow++
			last = now
			most = Math.max(most, document.querySelectorAll("*").length)
			scrollBy({top: 300, behavior: "instant"})
			n < 600 ? requestAnimationFrame(step) : done({frames: n, slow, elements: most, at: scrollY})
		}
		requestAnimationFrame(step)
	})`)
	g.add("frames over 50 ms when scrolling", "1 %", "%.1f %%, of %.0f frames", 100*frames["slow"]/frames["frames"], frames["frames"])
	g.add("elements when scrolling", "3,000", "%.0f", frames["elements"])
	g.add("renderers' memory", "200 MB", "%s", renderers(t, b))

	var jumps []float64
	for _, n := range []int{50_000, 99_000, 10, 75_000, 30_000} {
		// The next step after n, as a search or a link leads to it.
		jumps = append(jumps, get[float64](b, fmt.Sprintf(`new Promise(done => {
			const begin = performance.now(), n = %d
			location.hash = "#s" + n
			const look = () => {
				const step = document.querySelector(".step.here"), r = step?.getBoundingClientRect()
				r && Number(/\d+/.exec(step.id)[0]) >= n && Number(/\d+/.exec(step.id)[0]) < n + 50 && r.bottom > 0 && r.top < innerHeight ? done(performance.now() - begin) : requestAnimationFrame(look)
			}
			look()
		})`, n)))
	}
	g.add("jumps to a step", "150 ms", "%.0f ms", jumps)
	b.press(kb.Home)

	b.open("/s/" + long + "?at=99990")
	cookies, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) ([]*network.Cookie, error) {
		out, err := cdp.Call(ctx, t, network.GetCookies, network.GetCookiesParams{URLs: []string{s.base + "/"}})
		return out.Cookies, err
	})
	if err != nil || len(cookies) != 1 {
		t.Fatalf("%d cookies, %v", len(cookies), err)
	}
	live, _ := s.session("cart", "followed")
	s.question(live)
	follow := func(path string) time.Duration {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = strings.TrimPrefix(s.base, "http://")
		req.Header.Set("Cookie", cookies[0].Name+"="+cookies[0].Value)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		begin := time.Now()
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", path, res, err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if bytes.HasPrefix(lines.Bytes(), []byte("event: ")) {
				took := time.Since(begin)
				go func() {
					for lines.Scan() { // as a browser reads it
					}
				}()
				return took
			}
		}
		t.Fatalf("%s: the stream ended: %v", path, lines.Err())
		return 0
	}
	var again []time.Duration
	for range 5 {
		again = append(again, follow("/s/"+long+"/stream?after=99990"))
	}
	g.add("reconnecting at the end", "20 ms", "%v", again)
	before := memory(t, s.cmd.Process.Pid)
	for range 64 {
		follow("/s/" + live + "/stream?after=0")
	}
	g.add("server memory for 64 followers", "64 MiB", "%d MiB, on top of %d MiB", (memory(t, s.cmd.Process.Pid)-before)>>20, before>>20)
	b.check()
}

// renderers returns the memory of the browser's renderers.
func renderers(t *testing.T, b *tab) string {
	t.Helper()
	info, err := chromedp.Run(b.ctx, func(ctx context.Context, _ *chromedp.Target) (systeminfo.GetProcessInfoResult, error) {
		return cdp.Call(ctx, chromedp.FromContext(ctx).Browser, systeminfo.GetProcessInfo, cdp.Empty{})
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range info.ProcessInfo {
		if p.Type == "renderer" {
			out = append(out, fmt.Sprintf("%d MiB", memory(t, int(p.ID))>>20))
		}
	}
	return strings.Join(out, ", ")
}

// memory returns what a process holds of the machine's memory, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^Pss:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no Pss in\n%s", text)
	}
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
