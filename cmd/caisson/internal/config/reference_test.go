package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/policy"
)

var update = flag.Bool("update", false, "write docs/settings.md")

const referenceHead = `# Settings

Every key of the user's configuration file, generated from the table in
cmd/caisson/internal/config by ` + "`go test ./cmd/caisson/internal/config -update`" + `.
[configuration.md](configuration.md) describes the layers and has examples. NAME stands
for a name that you choose. A flag is also an environment variable: ` + "`--max-rounds`" + ` is
` + "`CAISSON_MAX_ROUNDS`" + `. "Tighten" marks what a trusted workspace's own file and an
administrator's requirements can make stricter.

| key | flag | default | tighten | |
|---|---|---|---|---|
`

const requirementsHead = `
Keys that requirements have beside those marked "tighten" (a workspace's own file has
` + "`fetch.refuse_private`" + ` of them):

| key | |
|---|---|
`

func TestReference(t *testing.T) {
	const path = "../../../../docs/settings.md"
	var b strings.Builder
	b.WriteString(referenceHead)
	defaults := map[string]string{}
	for _, v := range listValues(builtinFile(limits.DefaultResources())) {
		defaults[v.Key] = v.Text
	}
	user, bounded := map[string]bool{}, map[string]bool{}
	for _, k := range keysOf(reflect.TypeFor[Project]()) {
		bounded[k.name] = true
	}
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	for _, k := range keysOf(reflect.TypeFor[File]()) {
		user[k.name] = true
		flag, shown, tighten := k.tag.Get("flag"), k.tag.Get("shown"), ""
		if k.index == nil { // in an entry of a map
			flag, shown = "", ""
		}
		if flag != "" {
			flag = "--" + flag
		}
		if bounded[k.name] {
			tighten = "yes"
		}
		value := defaults[k.name]
		if shown != "" {
			value = shown
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.name, code(flag), code(value), tighten, strings.ReplaceAll(k.tag.Get("doc"), "|", `\|`))
	}
	b.WriteString(requirementsHead)
	for _, k := range keysOf(reflect.TypeFor[Requirements]()) {
		if !bounded[k.name] && !user[k.name] || k.name == "fetch.refuse_private" || k.name == "images" {
			fmt.Fprintf(&b, "| `%s` | %s |\n", k.name, k.tag.Get("doc"))
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), b.String()); diff != "" {
		t.Errorf("docs/settings.md is not what the table says; run with -update (-file +table):\n%s", diff)
	}
}

// TestTags: tags with words of other packages match them, and each flag has its own
// name.
func TestTags(t *testing.T) {
	flags := map[string]string{}
	for _, s := range Settings() {
		if s.Group == "" {
			t.Errorf("%s has the flag --%s and no group", s.Key, s.Flag)
		}
		if other, taken := flags[s.Flag]; taken {
			t.Errorf("%s and %s have the flag --%s", other, s.Key, s.Flag)
		}
		flags[s.Flag] = s.Key
		if s.Key == "policy.preset" {
			if diff := cmp.Diff(policy.PresetNames(), s.Words); diff != "" {
				t.Errorf("presets (-tools +tag):\n%s", diff)
			}
		}
	}
	for _, file := range []reflect.Type{reflect.TypeFor[File](), reflect.TypeFor[Project](), reflect.TypeFor[Requirements]()} {
		for _, k := range keysOf(file) {
			if listen := "the default is " + DefaultListen; k.name == "serve.listen" && !strings.HasSuffix(k.tag.Get("doc"), listen) {
				t.Errorf("%s does not end with %q", k.name, listen)
			}
		}
	}
}
