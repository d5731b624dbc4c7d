//go:build !linux

package fetch

import "testing"

// inNamespace is of Linux alone; see netns_linux_test.go.
const inNamespace = "CAISSON_TEST_FETCH_NAMESPACE"

func runInNamespace(m *testing.M) int { return m.Run() }
