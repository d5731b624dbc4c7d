package batch_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checkTrajectory checks a trial's trajectory with ATIF's schema.
func checkTrajectory(t testing.TB, dir string) {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := c.Compile(filepath.Join("..", "trace", "testdata", "atif-v1.7.schema.json"))
	must(t, err)
	text := read(t, dir, "agent", "trajectory.json")
	check := func(text string) error {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		must(t, err)
		return schema.Validate(doc)
	}
	if err := check(text); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	if check(strings.Replace(text, `"steps"`, `"stages"`, 1)) == nil {
		t.Error("the schema accepts anything")
	}
}
