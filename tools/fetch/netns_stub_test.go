package fetch

import "testing"

const inNamespace = "CAISSON_TEST_FETCH_NAMESPACE"

func runInNamespace(m *testing.M) int { return m.Run() }
