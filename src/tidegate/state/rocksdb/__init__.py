"""State in RocksDB: larger than memory; increments are new SST files. The only importer of rocksdict."""
