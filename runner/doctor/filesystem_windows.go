package doctor

func sameFileSystem(string, string) bool { return true }

func copyOwner(string, string) error { return nil }
