package server

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

// TestOpenAPIIsPublished compares docs/openapi.json with the code.
func TestOpenAPIIsPublished(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n")
	got := w.get("/openapi.json").requireStatus(t, 200)
	if kind := got.header.Get("Content-Type"); kind != "application/openapi+json" {
		t.Errorf("it is %s", kind)
	}
	path := filepath.Join("..", "..", "docs", "openapi.json")
	if *update {
		if err := os.WriteFile(path, []byte(got.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.text); diff != "" {
		t.Errorf("docs/openapi.json is not what the code says (go test ./runner/server -run OpenAPI -update):\n%s", diff)
	}
	for _, site := range []string{"unpkg", "cdn", "https://"} {
		if strings.Contains(strings.ReplaceAll(got.text, "https://json-schema.org", ""), site) {
			t.Errorf("the document names %s", site)
		}
	}
	w.get("/docs").requireProblem(t, 404, "not_found")
	var doc struct {
		OpenAPI string                                `json:"openapi"`
		Paths   map[string]map[string]json.RawMessage `json:"paths"`
	}
	got.decodeInto(t, &doc)
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("OpenAPI %s", doc.OpenAPI)
	}
	for route := range routeRoles {
		_, path, _ := strings.Cut(route, " ")
		if _, listed := doc.Paths[path]; listed == slices.Contains([]string{"/metrics", "/openapi.json", "/healthz"}, path) {
			t.Errorf("%s is listed: %v", path, listed)
		}
	}
	// Every operation describes its errors as problems.
	for path, operations := range doc.Paths {
		for method, op := range operations {
			if !bytes.Contains(op, []byte(`"application/problem+json"`)) || !bytes.Contains(op, []byte(`"operationId"`)) {
				t.Errorf("%s %s does not describe its errors", method, path)
			}
		}
	}
}
