package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Bounds of what package initialisation allocates before main runs, in
// allocations: unlike its time, they are the same on every machine.
const (
	maxInitAllocs    = 40_000 // of all packages
	maxOwnInitAllocs = 100    // of one package of this module
	maxDepInitAllocs = 400    // of one package of a dependency
)

// costlyInits are the packages of dependencies that may allocate more, with their
// own bounds. None of them has a way to do it later.
var costlyInits = map[string]int{
	"github.com/distribution/reference":        4_000, // compiles patterns; the Docker client imports it
	"github.com/openai/openai-go/v3":           1_200, // registers types of unions, as its next two packages do
	"github.com/openai/openai-go/v3/responses": 700,
	"github.com/opencontainers/go-digest":      1_000, // compiles patterns; image-spec imports it
	"github.com/prometheus/procfs":             1_000, // compiles patterns; client_golang imports it
	"github.com/danielgtaylor/huma/v2":         1_000, // compiles patterns
	"github.com/minio/minio-go/v7/pkg/s3utils": 2_100, // compiles patterns
	"github.com/yuin/goldmark/parser":          1_000, // makes tables and compiles patterns, as its next package does
	"github.com/yuin/goldmark/util":            500,
	"github.com/santhosh-tekuri/jsonschema/v6": 22_000, // compiles the schemas of five drafts
}

// TestInitAllocations bounds what initialisation allocates at every start of
// caisson. A package that exceeds its bound makes something at start that the
// commands don't need: compile patterns and build tables where they are first used,
// with sync.OnceValue, or import less.
func TestInitAllocations(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries(t), "caisson"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("caisson version: %v\n%s", err, &stderr)
	}
	total, packages := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) .* (\d+) allocs$`).FindAllStringSubmatch(stderr.String(), -1) {
		allocs, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		total += allocs
		packages++
		limit := maxDepInitAllocs
		if strings.HasPrefix(m[1], "github.com/caisson-run/caisson/") || m[1] == "main" {
			limit = maxOwnInitAllocs
		}
		if own, ok := costlyInits[m[1]]; ok {
			limit = own
		}
		if allocs > limit {
			t.Errorf("package %s allocates %d times while it is initialised, want at most %d", m[1], allocs, limit)
		}
	}
	if packages < 100 || total > maxInitAllocs {
		t.Errorf("%d packages allocate %d times while they are initialised, want at most %d", packages, total, maxInitAllocs)
	}
}
