//go:build !linux

package fetch

import "testing"

// inNamespace is used on Linux only; see netns_linux_test.go.
const inNamespace = "CAISSON_TEST_FETCH_NAMESPACE"

func runInNamespace(m *testing.M) int { return m.Run() }
