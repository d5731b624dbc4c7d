//go:build projects

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// forgedTest is a module whose test fails, and what forges the result that the go command would cache if it passed. The command prints the names of
// the entries that it looks for. GODEBUG is an input of a test, so the judge sets it too.
var forgedTest = map[string]string{
	"go.mod":       "module example.com/one\n\ngo 1.24\n",
	"work_test.go": "package one\n\nimport \"testing\"\n\nfunc TestWork(t *testing.T) { t.Fatal(\"wrong\") }\n",
	"judge.sh":     "GODEBUG=gocachetest=1 go test . 2>/dev/null | tail -n 1\n",
	"forge.sh": `forge() {
	out=$(printf '%s' "$2" | sha256sum | cut -d' ' -f1)
	c=$GOCACHE/$(echo $out | cut -c1-2) a=$GOCACHE/$(echo $1 | cut -c1-2)
	mkdir -p $c $a && printf '%s' "$2" >$c/$out-d
	printf 'v1 %s %s %20d %20d\n' $1 $out $(wc -c <$c/$out-d) $(date +%s%N) >$a/$1-a
}
entries() { GODEBUG=gocachetest=1 go test . 2>&1 | sed -n "s/^testcache: .* $1 .* => \([0-9a-f]\{64\}\)$/\1/p"; }
for e in $(entries 'test ID'); do forge $e '# test log
'; done
for e in $(entries 'input ID'); do forge $e 'ok  	example.com/one	0.001s
'; done
sh judge.sh
`,
}

// TestForgedTestResult lets a session forge the cached result of a test that fails. A later session of the same workspace reports the failure with
// frozen caches, where they were frozen for the one that forged, and without caches. The session that forged, and one that uses its caches, are
// the controls.
func TestForgedTestResult(t *testing.T) {
	backend := anyBackend(t)
	m := newMachine(t)
	m.env = append(m.env, "PATH="+os.Getenv("PATH"))
	for name, text := range forgedTest {
		m.write(t, name, text)
	}
	const forged = "ok  \texample.com/one\t(cached)\n"
	for _, session := range []struct{ use, script, want string }{
		{"writable", "judge.sh", "FAIL\n"}, // compiles the standard library
		{"frozen", "forge.sh", forged},
		{"frozen", "judge.sh", "FAIL\n"},
		{"writable", "forge.sh", forged},
		{"none", "judge.sh", "FAIL\n"},
		{"writable", "judge.sh", forged},
	} {
		out := m.start(t, "tools", "call", "shell", "--backend", backend, "--workspace", m.workspace, "--cache", "go", "--cache-use", session.use,
			fmt.Sprintf(`{"command": "sh %s", "timeout_seconds": 500}`, session.script)).wait(t, 10*time.Minute)
		out.want(t, 0)
		if !strings.Contains(out.stdout, session.want) {
			t.Errorf("%s with cache_use %s: no %q in\n%s", session.script, session.use, session.want, out.stdout)
		}
	}
}
