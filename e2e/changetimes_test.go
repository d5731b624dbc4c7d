package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
)

// hideChanges changes every file in the list of TestChangesThatHide, and leaves their sizes
// and modification times as they were. Loops in the background go on while the session ends.
const hideChanges = `set -e
date -s @0 >/dev/null 2>&1 && echo "the clock was set back"
hide() { cp -p "$1" "$TMPDIR/was"; eval "$2"; touch -r "$TMPDIR/was" "$1"; }
hide times 'printf "changed\n" >times'
printf 'changed\n' >new; touch -r over new; mv new over
hide linked 'ln linked other; printf "changed\n" >other; rm other'
hide many/f400 'printf "changed\n" >many/f400'
cp -p mapped "$TMPDIR/mapped"
python3 -c '
import mmap, os
f = os.open("mapped", os.O_RDWR)
m = mmap.mmap(f, 8)
os.close(f)
os.utime("mapped", ns=(0, os.stat("over").st_mtime_ns))
m[:] = b"changed\n"
m.close()
os.utime("mapped", ns=(0, os.stat("over").st_mtime_ns))'
(while :; do printf 'changed\n' >late; touch -r over late; done) &
(while :; do mv moved away; mv away moved; done) 2>/dev/null &
sleep 0.3
`

// TestChangesThatHide checks that a session lists the changes of commands that hide them from
// who looks at sizes and times: the report names these files and no other.
func TestChangesThatHide(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		if !isInUsr(t, "python3") {
			lacking(t, backend, "needs python3")
		}
		for _, mode := range []string{"bind", "overlay"} {
			t.Run(mode, func(t *testing.T) {
				hidden := []string{"late", "linked", "many/f400", "mapped", "over", "times"}
				m := newMachine(t)
				for i := range 500 {
					m.write(t, fmt.Sprintf("many/f%d", i), "content\n")
				}
				for _, name := range append([]string{"kept", "moved/a", "moved/b/c"}, hidden...) {
					m.write(t, name, "content\n")
					if err := os.Chtimes(filepath.Join(m.workspace, name), time.Time{}, time.Unix(1_700_000_000, 0)); err != nil {
						t.Fatal(err)
					}
				}
				out := m.run(t, "exec", "--workspace", m.workspace, "--backend", backend, "--mode", mode, "--", "sh", "-c", hideChanges)
				out.want(t, 0)
				if out.stdout != "" {
					t.Errorf("the command prints %q", out.stdout)
				}
				reports, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "report.json"))
				if err != nil || len(reports) != 1 {
					t.Fatalf("reports %q, %v", reports, err)
				}
				text := readFile(t, reports[0])
				report := parse[runner.Report](t, text)
				var listed []string
				for _, c := range report.Changed {
					// The loop ended somewhere: the directory has one name or the other.
					if !strings.HasPrefix(c.Path, "moved/") && !strings.HasPrefix(c.Path, "away/") {
						listed = append(listed, c.Path)
					}
				}
				slices.Sort(listed)
				if !slices.Equal(listed, hidden) || report.Incomplete || report.ChangedOmitted != 0 {
					t.Errorf("listed as changed %q, want %q; omitted %d, incomplete %v", listed, hidden, report.ChangedOmitted, report.Incomplete)
				}
				if mode == "overlay" {
					return // the user's files are as they were
				}
				// The control: by size and time all of them are as before, but not by content.
				for _, name := range hidden {
					path := filepath.Join(m.workspace, name)
					info, err := os.Stat(path)
					if err != nil {
						t.Fatal(err)
					}
					content, err := os.ReadFile(path)
					if err != nil || string(content) == "content\n" {
						t.Errorf("%s was not changed: %q, %v", name, content, err)
					}
					if name != "late" && (info.Size() != 8 || !info.ModTime().Equal(time.Unix(1_700_000_000, 0))) {
						t.Errorf("%s shows its change: %d bytes of %s", name, info.Size(), info.ModTime())
					}
				}
			})
		}
	})
}
