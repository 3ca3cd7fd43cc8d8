# kubectl create secret generic backup-password --from-literal=password=…
# kubectl create secret generic s3-login --from-literal=accessKeyID=… --from-literal=secretAccessKey=…
resource "berth_backup_repository" "offsite" {
  name = "offsite"
  s3 = {
    endpoint = "https://s3.eu-north-1.amazonaws.com"
    region   = "eu-north-1"
    bucket   = "example-backups"
    prefix   = "berth/default"
  }
  credentials_secret_name = "s3-login"
  password_secret_name    = "backup-password"

  # Each backup is read back once it is complete and every 30 days.
  verification = {
    interval_days = 30
    bandwidth     = "20Mi"
  }
}

# A folder that administrators offer: berth host --backup-folder nas=/mnt/nas
resource "berth_backup_repository" "nas" {
  name                 = "nas"
  folder               = "nas"
  password_secret_name = "backup-password"
}
